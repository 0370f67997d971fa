package data_test

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"penstock.example/data"
	"penstock.example/internal/must"
)

// mnistFiles is four files of blank images: five to train, three to test.
func mnistFiles() map[string][]byte {
	return map[string][]byte{
		"train-images-idx3-ubyte": idx(make([]uint8, 5*784), 5, 28, 28),
		"train-labels-idx1-ubyte": idx([]uint8{4, 3, 2, 1, 0}, 5),
		"t10k-images-idx3-ubyte":  idx(make([]uint8, 3*784), 3, 28, 28),
		"t10k-labels-idx1-ubyte":  idx([]uint8{9, 8, 7}, 3),
	}
}

func TestOpenMNIST(t *testing.T) {
	plain := mnistFiles()
	packed, disguised := map[string][]byte{}, map[string][]byte{}
	for name, content := range plain {
		packed[name+".gz"] = zipped(t, content)
		disguised[name] = zipped(t, content) // by content, not by name
	}
	for reason, files := range map[string]map[string][]byte{"plain": plain, "gzip": packed, "gzip by another name": disguised} {
		train, test, err := data.Open("mnist", directoryOf(t, files), data.Options{})
		if err != nil {
			t.Errorf("%s: %v", reason, err)
			continue
		}
		if train.Len() != 5 || test.Len() != 3 || train.Info().Name != "mnist" || train.Info().Classes != 10 {
			t.Errorf("%s: %d and %d samples of %+v", reason, train.Len(), test.Len(), train.Info())
		}
		if batch := fill(t, test, 1, 0); !slices.Equal(batch.Target.Int64, []int64{8, 9}) || batch.Input.Float32[0] != -float32(0.1307)/float32(0.3081) {
			t.Errorf("%s: targets %v, black %v", reason, batch.Target.Int64, batch.Input.Float32[0])
		}
	}

	train, _, err := data.Open("mnist", directoryOf(t, plain), data.Options{Mean: []float32{0.5}, Std: []float32{0.5}})
	if err != nil {
		t.Fatal(err)
	}
	if black := fill(t, train, 0).Input.Float32[0]; black != -1 {
		t.Errorf("with mean and std of a half, black is %v, want -1", black)
	}
}

// TestFashionMNIST reads the real files, where they are installed, and checks the constants that
// images are normalised by.
func TestFashionMNIST(t *testing.T) {
	if _, err := os.Stat(filepath.Join("/usr/share/datasets/fashion-mnist", "train-images-idx3-ubyte.gz")); err != nil {
		t.Skip("the Debian package dataset-fashion-mnist is not installed")
	}
	train, test, err := data.Open("fashion-mnist", "", data.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if train.Len() != 60_000 || test.Len() != 10_000 {
		t.Fatalf("%d samples to train and %d to test, want 60,000 and 10,000", train.Len(), test.Len())
	}

	// Normalised by the mean and the deviation of the data itself, the mean is 0 and the deviation
	// 1, up to the rounding of the constants to four digits.
	var batch data.Batch
	var sum, squares float64
	var counts [10]int
	for first := 0; first < train.Len(); first += 1000 {
		indices := make([]int, 1000)
		for i := range indices {
			indices[i] = first + i
		}
		must.Do(t, train.Fill(&batch, indices))
		for _, x := range batch.Input.Float32 {
			sum += float64(x)
			squares += float64(x) * float64(x)
		}
		for _, label := range batch.Target.Int64 {
			counts[label]++
		}
	}
	n := float64(train.Len() * 784)
	mean := sum / n
	if deviation := math.Sqrt(squares/n - mean*mean); math.Abs(mean) > 5e-4 || math.Abs(deviation-1) > 5e-4 {
		t.Errorf("normalised, the mean is %v and the deviation %v", mean, deviation)
	}
	for class, count := range counts {
		if count != 6000 {
			t.Errorf("class %d has %d samples, want 6000", class, count)
		}
	}
	// The first labels of the training file: ankle boot, T-shirt, T-shirt, dress.
	if got := fill(t, train, 0, 1, 2, 3).Target.Int64; !slices.Equal(got, []int64{9, 0, 0, 3}) {
		t.Errorf("the first labels are %v, want [9 0 0 3]", got)
	}
}
