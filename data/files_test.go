package data_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/data"
	"penstock.example/internal/disk"
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
	for reason, files := range map[string]map[string][]byte{"plain": plain, "gzip": packed,
		"gzip by another name": disguised} {
		train, test, err := data.Open("mnist", directoryOf(t, files), data.Options{})
		if err != nil {
			t.Errorf("%s: %v", reason, err)
			continue
		}
		if train.Len() != 5 || test.Len() != 3 || train.Info().Name != "mnist" || train.Info().Classes != 10 {
			t.Errorf("%s: %d and %d samples of %+v", reason, train.Len(), test.Len(), train.Info())
		}
		if batch := fill(t, test, 1, 0); !slices.Equal(batch.Target.Int64, []int64{8, 9}) ||
			batch.Input.Float32[0] != -float32(0.1307)/float32(0.3081) {
			t.Errorf("%s: targets %v, black %v", reason, batch.Target.Int64, batch.Input.Float32[0])
		}
	}

	train, _ := open(t, "mnist", directoryOf(t, plain),
		data.Options{Mean: []float64{0.5}, Std: []float64{0.5}})
	if black := fill(t, train, 0).Input.Float32[0]; black != -1 {
		t.Errorf("with mean and std of a half, black is %v, want -1", black)
	}
}

// TestFashionMNIST reads the real files, where they are installed, and checks the constants that
// images are normalised by.
func TestFashionMNIST(t *testing.T) {
	if _, err := os.Stat(filepath.Join("/usr/share/datasets/fashion-mnist",
		"train-images-idx3-ubyte.gz")); err != nil {
		t.Skip("the Debian package dataset-fashion-mnist is not installed")
	}
	train, test := open(t, "fashion-mnist", "", data.Options{})
	if train.Len() != 60_000 || test.Len() != 10_000 {
		t.Fatalf("%d samples to train and %d to test, want 60,000 and 10,000", train.Len(), test.Len())
	}

	// Normalised by the data's own mean and deviation, the mean is 0 and the deviation 1, up to the rounding
	// of the constants to four digits.
	indices := make([]int, train.Len())
	for i := range indices {
		indices[i] = i
	}
	batch := fill(t, train, indices...)
	var sum, squares float64
	for _, x := range batch.Input.Float32 {
		sum += float64(x)
		squares += float64(x) * float64(x)
	}
	n := float64(train.Len() * 784)
	if deviation := math.Sqrt(squares/n - sum/n*sum/n); math.Abs(sum/n) > 5e-4 ||
		math.Abs(deviation-1) > 5e-4 {
		t.Errorf("normalised, the mean is %v and the deviation %v", sum/n, deviation)
	}
	// The first labels of the training file: ankle boot, T-shirt, T-shirt, dress.
	if got := batch.Target.Int64[:4]; !slices.Equal(got, []int64{9, 0, 0, 3}) {
		t.Errorf("the first labels are %v, want [9 0 0 3]", got)
	}
}

// cifar returns a file of records whose labels are given; all pixels of a record are its label
// times ten plus the channel.
func cifar(labels ...uint8) []byte {
	var file []byte
	for _, label := range labels {
		file = append(file, label)
		for channel := range uint8(3) {
			file = append(file, bytes.Repeat([]byte{10*label + channel}, 32*32)...)
		}
	}
	return file
}

// cifarFiles is the six files with two records each: labels 0 to 9 in the five, 5 and 6 in the
// test's.
func cifarFiles(under string) map[string][]byte {
	files := map[string][]byte{under + "test_batch.bin": cifar(5, 6)}
	for i := range uint8(5) {
		files[fmt.Sprintf("%sdata_batch_%d.bin", under, i+1)] = cifar(2*i, 2*i+1)
	}
	return files
}

func TestOpenCIFAR10(t *testing.T) {
	for _, under := range []string{"", "cifar-10-batches-bin/"} {
		train, test := open(t, "cifar10", directoryOf(t, cifarFiles(under)), data.Options{})
		if train.Len() != 10 || test.Len() != 2 {
			t.Errorf("%d samples to train and %d to test, want 10 and 2", train.Len(), test.Len())
		}
		info := train.Info()
		if info.Name != "cifar10" || info.Classes != 10 ||
			!slices.Equal(info.Input.Shape, []int64{3, 32, 32}) {
			t.Errorf("Info() = %+v", info)
		}
		batch := fill(t, train, 7, 2)
		if !slices.Equal(batch.Target.Int64, []int64{7, 2}) {
			t.Errorf("targets %v, want [7 2]", batch.Target.Int64)
		}
		// Blue of sample 7 is 72: (72/255 - 0.4465) / 0.2616.
		if got, want := batch.Input.Float32[2*1024], float32((72.0/255-0.4465)/0.2616); got < want-1e-6 ||
			got > want+1e-6 {
			t.Errorf("blue of sample 7 is %v, want %v", got, want)
		}
	}
}

// idx returns an IDX file of bytes.
func idx(numbers []uint8, dims ...uint32) []byte {
	file := []byte{0, 0, 8, byte(len(dims))}
	for _, dim := range dims {
		file = binary.BigEndian.AppendUint32(file, dim)
	}
	return append(file, numbers...)
}

func TestDecodeIDX(t *testing.T) {
	numbers := []uint8{1, 2, 3, 250, 251, 252}
	plain := idx(numbers, 1, 2, 3)
	for name, file := range map[string][]byte{"plain": plain, "gzip": zipped(t, plain),
		"gzip in two members": append(zipped(t, plain[:9]), zipped(t, plain[9:])...)} {
		array, err := data.DecodeIDX(file)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if array.Kind != data.Uint8 || !slices.Equal(array.Shape, []int64{1, 2, 3}) ||
			!slices.Equal(array.Uint8, numbers) {
			t.Errorf("%s: got %v", name, array)
		}
	}
	empty, err := data.DecodeIDX(idx(nil, 0, 28, 28))
	if err != nil || !slices.Equal(empty.Shape, []int64{0, 28, 28}) || len(empty.Uint8) != 0 {
		t.Errorf("without numbers: %v, %v", empty, err)
	}
}

// npy is an npy file of this version and header, and these numbers after it.
func npy(version byte, header string, numbers any) []byte {
	var b bytes.Buffer
	b.WriteString("\x93NUMPY")
	b.Write([]byte{version, 0})
	if version == 1 {
		binary.Write(&b, binary.LittleEndian, uint16(len(header)))
	} else {
		binary.Write(&b, binary.LittleEndian, uint32(len(header)))
	}
	b.WriteString(header)
	binary.Write(&b, binary.LittleEndian, numbers)
	return b.Bytes()
}

// npyOf is an npy file as numpy.save writes it.
func npyOf(descr string, numbers any, shape ...int64) []byte {
	text := strings.Trim(strings.ReplaceAll(fmt.Sprint(shape), " ", ", "), "[]")
	if len(shape) == 1 {
		text += ","
	}
	header := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, text)
	return npy(1, header+strings.Repeat(" ", 117-len(header))+"\n", numbers)
}

// What is written in any version and type is read as it was.
func TestDecodeNPY(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		shape := rapid.SliceOfN(rapid.Int64Range(0, 5), 0, 3).Draw(r, "shape")
		n := (data.Spec{Shape: shape}).Size()
		draw := func(low, high int64) []int64 {
			return rapid.SliceOfN(rapid.Int64Range(low, high), n, n).Draw(r, "numbers")
		}
		var numbers any
		want := data.Array{Kind: data.Float32, Shape: shape}
		descr := rapid.SampledFrom([]string{"<f4", "<f8", "<i4", "<i8", "|u1"}).Draw(r, "descr")
		switch descr {
		case "<f4", "<f8":
			var single []float32
			var double []float64
			for _, x := range draw(-1<<20, 1<<20) {
				single, double = append(single, float32(x)/8), append(double, float64(x)/8)
			}
			if want.Float32, numbers = single, single; descr == "<f8" {
				numbers = double
			}
		case "<i4":
			var narrow []int32
			want.Kind, want.Int64 = data.Int64, draw(-1<<31, 1<<31-1)
			for _, x := range want.Int64 {
				narrow = append(narrow, int32(x))
			}
			numbers = narrow
		case "<i8":
			want.Kind, want.Int64 = data.Int64, draw(-1<<62, 1<<62)
			numbers = want.Int64
		case "|u1":
			want.Kind = data.Uint8
			for _, x := range draw(0, 255) {
				want.Uint8 = append(want.Uint8, uint8(x))
			}
			numbers = want.Uint8
		}
		tuple := "("
		for _, dim := range shape {
			tuple += fmt.Sprintf("%d, ", dim)
		}
		keys := rapid.Permutation([]string{"'descr': '" + descr + "'", "\"fortran_order\":False",
			"'shape': " + tuple + ")"}).Draw(r, "keys")
		header := "{" + strings.Join(keys, rapid.SampledFrom([]string{",", ", "}).Draw(r, "comma")) +
			rapid.SampledFrom([]string{"}", ", }", ",}  \n"}).Draw(r, "end")
		content := npy(byte(rapid.IntRange(1, 3).Draw(r, "version")), header, numbers)
		got := must.Get(data.DecodeNPY(content))(r)
		if got.Kind != want.Kind || !slices.Equal(got.Shape, want.Shape) ||
			!slices.Equal(got.Float32, want.Float32) || !slices.Equal(got.Int64, want.Int64) ||
			!slices.Equal(got.Uint8, want.Uint8) {
			r.Fatalf("%+v, want %+v", got, want)
		}
		cut := rapid.IntRange(0, len(content)-1).Draw(r, "cut")
		if _, err := data.DecodeNPY(content[:cut]); err == nil {
			r.Fatal("a file cut short: no error")
		}
		if _, err := data.DecodeNPY(append(content, 0)); err == nil {
			r.Fatal("a byte too many: no error")
		}
	})
}

// Arrays in files are sets of any task; bytes may be normalised, rows are images of a pixel.
func TestOpenNPY(t *testing.T) {
	for name, row := range map[string]struct {
		x, y          []byte
		task          data.Task
		input, target []int64
		outputs       int
	}{
		"classes": {npyOf("<f8", make([]float64, 40), 10, 4),
			npyOf("<i4", []int32{0, 1, 2, 0, 1, 2, 0, 1, 2, 0}, 10), data.Classification, []int64{4, 1,
				1}, nil, 3},
		"column": {npyOf("<f4", make([]float32, 40), 10, 4),
			npyOf("|u1", []uint8{0, 1, 2, 0, 1, 2, 0, 1, 2, 0}, 10, 1), data.Classification, []int64{4, 1,
				1}, nil, 3},
		"regression": {npyOf("<f4", make([]float32, 40), 10, 4), npyOf("<f8", make([]float64, 10), 10),
			data.Regression, []int64{4, 1, 1}, []int64{1}, 1},
		"masks": {npyOf("|u1", make([]uint8, 120), 10, 3, 2, 2),
			npyOf("<i8", append(make([]int64, 39), 1), 10, 2, 2), data.Segmentation, []int64{3, 2,
				2}, []int64{2, 2}, 2},
		"tokens": {npyOf("<i8", append(make([]int64, 39), 9), 10, 4),
			npyOf("<i8", make([]int64, 40), 10, 4), data.NextToken, []int64{4}, []int64{4}, 10},
	} {
		train, test, err := data.Open("npy",
			directoryOf(t, map[string][]byte{"x.npy": row.x, "y.npy": row.y}), data.Options{Holdout: 0.3})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		info := train.Info()
		if train.Len() != 7 || test.Len() != 3 || info.Task() != row.task ||
			info.Outputs() != row.outputs || !slices.Equal(info.Input.Shape, row.input) ||
			!slices.Equal(info.Target.Shape, row.target) {
			t.Errorf("%s: %d and %d samples of %+v", name, train.Len(), test.Len(), info)
		}
	}
	bytes, labels := npyOf("|u1", []uint8{0, 255, 51, 102}, 2, 1, 2, 1), npyOf("<i8", []int64{0, 1}, 2)
	parts := map[string][]byte{"train_x.npy": bytes, "train_y.npy": labels, "val_x.npy": bytes,
		"val_y.npy": npyOf("<i8", []int64{0, 4}, 2)}
	train, test := open(t, "npy", directoryOf(t, parts),
		data.Options{Mean: []float64{0.5}, Std: []float64{0.5}})
	if got := fill(t, train, 0).Input.Float32; !slices.Equal(got, []float32{-1, 1}) ||
		train.Info().Classes != 5 || test.Info().Classes != 5 ||
		!slices.Equal(train.Info().Pad, []float32{-1}) {
		t.Errorf("%v, %+v", got, train.Info())
	}
	paths, err := data.Files("npy", directoryOf(t, parts), data.Options{})
	if err != nil || len(paths) != 4 || filepath.Base(paths[3]) != "val_y.npy" {
		t.Errorf("%v, %v", paths, err)
	}
}

// A named pipe or a device in place of a file is refused, not waited for or read without end; so is
// a text that no memory holds.
func TestOpenTakesRegularFilesAlone(t *testing.T) {
	images := mnistFiles()
	delete(images, "train-images-idx3-ubyte")
	delete(images, "train-images-idx3-ubyte.gz")
	for _, row := range []struct {
		set, file string
		directory string
	}{
		{"mnist", "train-images-idx3-ubyte", directoryOf(t, images)},
		{"cifar10", "data_batch_1.bin", directoryOf(t, cifarOthers())},
		{"text", "a.txt", t.TempDir()},
	} {
		path := filepath.Join(row.directory, row.file)
		for what, put := range map[string]func() error{
			"named pipe": func() error { return syscall.Mkfifo(path, 0o666) },
			"device":     func() error { return os.Symlink("/dev/zero", path) },
		} {
			must.Do(t, put())
			_, _, err := data.Open(row.set, row.directory, data.Options{})
			wantError(t, err, row.set, path, what)
			if !errors.Is(err, disk.ErrNotRegular) {
				t.Errorf("%s, a %s: error %v", row.set, what, err)
			}
			must.Do(t, os.Remove(path))
		}
	}
	path := filepath.Join(t.TempDir(), "a.txt")
	writeFile(t, path, []byte("x"))
	must.Do(t, os.Truncate(path, disk.MaxText+1))
	_, _, err := data.Open("text", path, data.Options{})
	wantError(t, err, path, "want at most 4294967296")
}

// cifarOthers are CIFAR-10's files but for the first, empty: they have to be there before any is
// read.
func cifarOthers() map[string][]byte {
	return map[string][]byte{"data_batch_2.bin": nil, "data_batch_3.bin": nil, "data_batch_4.bin": nil,
		"data_batch_5.bin": nil, "test_batch.bin": nil}
}

// with is a set of files of which some are others, or absent where they are nil.
func with(files map[string][]byte, others map[string][]byte) map[string][]byte {
	out := map[string][]byte{}
	for name, content := range files {
		out[name] = content
	}
	for name, content := range others {
		if out[name] = content; content == nil {
			delete(out, name)
		}
	}
	return out
}

// What Open refuses names the set, the file and what is wanted.
func TestOpenRefuses(t *testing.T) {
	type files = map[string][]byte
	text := func(name, content string) files { return files{name: []byte(content)} }
	lines := func(lines ...string) files { return text("train.csv", strings.Join(lines, "\n")) }
	var amounts []string
	for i := range 150 {
		amounts = append(amounts, fmt.Sprintf("1,%d", 1000*i))
	}
	image := pngOf(t, picture(4, 4, 0))
	x, y := npyOf("<f4", make([]float32, 8), 4, 2), npyOf("<i8", []int64{0, 1, 0, 1}, 4)
	xy := files{"x.npy": x, "y.npy": y}
	classes := files{"cat/a.png": image, "dog/a.png": image}
	small := tokenBytes[uint16](1, 2, 3, 4)
	for _, row := range []struct {
		set     string
		files   files // nil is no path
		options data.Options
		want    string
	}{
		{"mnist", nil, data.Options{}, "it has no usual place: name the directory of its files, which " +
			"are at https://"},
		{"mnist", with(mnistFiles(), files{"t10k-labels-idx1-ubyte": nil}), data.Options{},
			"no t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte.gz in "},
		{"mnist", with(mnistFiles(), files{"train-images-idx3-ubyte": idx(make([]uint8, 100), 5, 28, 28)}),
			data.Options{}, "100 bytes of data; want numbers of 1 bytes of the shape [5 28 28]"},
		{"mnist", with(mnistFiles(), files{"train-images-idx3-ubyte": idx([]uint8{1, 2}, 2)}),
			data.Options{}, "has the shape [2] and the labels [5]; want [n 28 28] and [n]"},
		{"mnist", with(mnistFiles(), files{"train-labels-idx1-ubyte": idx(make([]uint8, 4), 4)}),
			data.Options{}, "5 inputs and 4 targets"},
		{"mnist", with(mnistFiles(), files{"t10k-labels-idx1-ubyte": idx([]uint8{1, 2, 10}, 3)}),
			data.Options{}, "target 2 has class 10; want 0 to 9"},
		{"mnist", mnistFiles(), data.Options{Mean: []float64{1, 2}},
			"mean [1 2] and std [0.3081] for inputs float32 [1 28 28]; want a number for each channel"},
		{"mnist", mnistFiles(), data.Options{Std: []float64{0}},
			"std 0; want finite numbers and std above 0"},
		{"cifar10", with(cifarFiles(""), files{"data_batch_4.bin": nil}), data.Options{},
			"no data_batch_4.bin or "},
		{"cifar10", with(cifarFiles(""), files{"data_batch_1.bin": {1, 2}}), data.Options{},
			"data_batch_1.bin: 2 bytes are no whole number of images"},
		{"csv", lines("a,b,c", "1,2,0", "1,2,3,1"), data.Options{},
			"line 3: wrong number of fields; want as many values as in the first line"},
		{"csv", lines("a,b,c", "1,2,0", "1,red,1"), data.Options{},
			`line 3, column 2: "red"; want a finite number`},
		{"csv", lines("1,2,0", "1,1e39,1"), data.Options{}, `line 2, column 2: "1e39"; want a finite number`},
		{"csv", lines("1,2,0", "1,2,"), data.Options{}, "line 2: no target; want a class or a number"},
		{"csv", lines("1,2,0", "1,3,0"), data.Options{}, `all targets are ["0"]; want at least two classes`},
		{"csv", lines("a,b"), data.Options{}, "no line with numbers"},
		{"csv", lines("1", "2"), data.Options{}, "line 1: want a column for the target and at least one"},
		{"csv", lines("a,b", "1,2"), data.Options{CSV: data.CSV{Target: "c"}},
			`line 1: no column "c"; want a name in the header, or a number from 1 to 2`},
		{"csv", lines("1,2", "1,2"), data.Options{CSV: data.CSV{Target: "3"}},
			`no column "3"; want a name in the header, or a number from 1 to 2`},
		{"csv", lines("a,b,a", "1,2,0"), data.Options{}, `the header has the column "a" twice`},
		{"csv", lines("a,b", "1,\"2"), data.Options{}, "separated by ',', and quotes around"},
		{"csv", lines(amounts...), data.Options{}, "150 different whole numbers"},
		{"csv", lines("1,2", "1,red"), data.Options{CSV: data.CSV{Task: data.Regression}},
			`line 2: the target "red"; want a finite number`},
		{"csv", files{"train.csv": []byte("1,a\n2,b\n"), "val.csv": []byte("1,a\n2,c\n")}, data.Options{},
			"val.csv: line 2: \"c\" is no class to train with; the classes are a, b"},
		{"csv", files{}, data.Options{},
			"name a file, or a directory with train.csv and val.csv or test.csv"},
		{"npy", files{"x.npy": x}, data.Options{}, "no y.npy in "},
		{"npy", files{}, data.Options{}, "name a directory with x.npy and y.npy"},
		{"npy", files{"x.npy": x[:50], "y.npy": y}, data.Options{}, "x.npy: the header has 40 of 118 bytes"},
		{"npy", xy, data.Options{Classes: 1}, "target 1 has class 1; want 0 to 0"},
		{"npy", xy, data.Options{Mean: []float64{1}}, "mean [1] and std [] for inputs float32 [2 1 1]"},
		{"npy", xy, data.Options{Holdout: 2}, "Holdout is 2; want a share"},
		{"npy", files{"train_x.npy": x, "train_y.npy": y, "test_x.npy": x, "test_y.npy": y},
			data.Options{Holdout: 0.5}, "Holdout is 0.5: there is a part to test with"},
		{"npy", files{"train_x.npy": x, "train_y.npy": y,
			"test_x.npy": npyOf("<f4", make([]float32, 12), 4, 3), "test_y.npy": y}, data.Options{},
			"want the same kinds and shapes"},
		{"images", files{}, data.Options{}, "no directory in "},
		{"images", files{"cat/a.png": image, "dog/a.txt": nil}, data.Options{},
			"dog: name a directory with a directory of PNG"},
		{"images", files{"train/cat/a.png": image, "train/dog/a.png": image, "val/cow/a.png": image},
			data.Options{}, "val/cow is no class to train with; the classes are cat, dog"},
		{"images", files{"train/cat/a.png": image, "train/dog/a.png": image, "val/x.txt": nil},
			data.Options{}, "val: name a directory"},
		{"images", files{"cat/a.webp": nil, "dog/a.png": image}, data.Options{},
			"cat/a.webp: .webp is not read; convert the file"},
		{"images", files{"caf\xe9/a.png": image, "dog/a.png": image}, data.Options{},
			"line 1, column 4: byte 0xe9 is not UTF-8"},
		{"images", classes, data.Options{Size: -1}, "Size is -1; want at least 1"},
		{"images", classes, data.Options{Channels: 2}, "Channels is 2; want 3 for colours"},
		{"images", classes, data.Options{Augment: data.Augment{Scale: 2}}, "a Scale from 0 to 1"},
		{"synthetic", nil, data.Options{Augment: data.Augment{Scale: 0.5}},
			"a set that is read from pictures"},
		{"text", nil, data.Options{}, "it has no usual place: name a file, or a directory of .txt files"},
		{"text", files{}, data.Options{}, "no .txt file in "},
		{"text", text("a.txt", "hello"), data.Options{}, "5 bytes; want at least 129"},
		{"text", text("a.txt", "hello"), data.Options{Window: 4}, "1 samples; want at least 2"},
		{"text", text("a.txt", "hello"), data.Options{Window: -1}, "Window is -1; want at least 1"},
		{"text", text("a.txt", "one\ntwo caf\xe9"), data.Options{Window: 1, Tokenizer: fixture},
			"a.txt: tokenizer: line 2, column 8: byte 0xe9 is not UTF-8"},
		{"text", text("a.txt", "the stages"), data.Options{Window: 1, Tokenizer: t.TempDir()},
			"want a tokenizer.json"},
		{"tokens", text("train.bin", "123"), data.Options{Window: 1},
			"train.bin: 3 bytes are no whole number of tokens of 2 bytes; want uint16"},
		{"tokens", files{"train.bin": small}, data.Options{Window: 4},
			"4 tokens; want at least 5 for one sample"},
		{"tokens", files{"train.bin": small}, data.Options{Window: 2}, "1 samples; want at least 2"},
		{"tokens", files{"train.bin": tokenBytes[uint32](1, 1<<30, 1, 1)},
			data.Options{Window: 1, TokenBytes: 4}, "token 1 is 1073741824; want 0 to 1048575: more " +
				"classes, or another type"},
		{"tokens", files{"train.bin": small}, data.Options{TokenBytes: 3},
			"TokenBytes is 3; want 2 for uint16, or 4 for uint32"},
	} {
		path := ""
		if row.files != nil {
			path = directoryOf(t, row.files)
		}
		_, _, err := data.Open(row.set, path, row.options)
		wantError(t, err, "data: "+row.set, row.want)
	}
	_, _, err := data.Open("text", filepath.Join(t.TempDir(), "none"), data.Options{})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v is not fs.ErrNotExist", err)
	}
}

func TestDecodersRefuse(t *testing.T) {
	good := idx([]uint8{1, 2, 3, 4}, 2, 2)
	packed := zipped(t, good)
	flipped := slices.Clone(packed)
	flipped[len(flipped)-5] ^= 1 // in the checksum
	header := func(text string) []byte { return npy(1, text, []float32{1, 2}) }
	for _, row := range []struct {
		decode func([]byte) error
		file   []byte
		want   string
	}{
		{readIDX, good[:3], "it begins with 000008; want"},
		{readIDX, good[:9], "it begins with 00000802; want"},
		{readIDX, good[:15], "3 bytes of data; want numbers of 1 bytes of the shape [2 2]"},
		{readIDX, append(slices.Clone(good), 0), "5 bytes of data"},
		{readIDX, []byte("<!DOCTYPE html>"), "it begins with 3c21444f"},
		{readIDX, idx(nil, 1<<31, 1<<31, 1<<31), "0 bytes of data"}, // which takes no memory
		{readIDX, packed[:len(packed)-3], "the gzip data: unexpected EOF"},
		{readIDX, flipped, "gzip: invalid checksum"},
		{readNPY, header("{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }"),
			"its numbers are >f4; want float32"},
		{readNPY, header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }"),
			"want an array of one type in C order"},
		{readNPY, header("{'descr': '<f4', 'fortran_order': True, 'shape': (2,), }"),
			"want an array of one type in C order"},
		{readNPY, header("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }"),
			"want an array of one type in C order"},
		{readNPY, header("{'descr': '<f4', 'fortran_order': False, 'shape': (1152921504606846976, 16), }"),
			"8 bytes of data"},
		{readNPY, []byte("PK\x03\x04 an npz file"), "this is no npy file"},
		{readNPY, npy(4, "{}", []float32{1}), "version 4.0 of the format; want 1.0, 2.0 or 3.0"},
		{readNPY, append(npy(2, "", []float32{1})[:8], 255, 255, 255, 255),
			"the header has 0 of 4294967295 bytes"},
	} {
		wantError(t, row.decode(row.file), row.want)
	}
}

func readIDX(file []byte) error { _, err := data.DecodeIDX(file); return err }
func readNPY(file []byte) error { _, err := data.DecodeNPY(file); return err }

// What Fill finds in a file of tokens names the token.
func TestTokensRefuses(t *testing.T) {
	path := filepath.Join(directoryOf(t, map[string][]byte{"a.bin": tokenBytes[uint16](1, 2, 3, 4)}), "a.bin")
	train, _ := open(t, "tokens", path, data.Options{Window: 1, Classes: 5})
	var b data.Batch
	writeFile(t, path, tokenBytes[uint16](1, 5, 3, 4)) // as after the first part of a file, which Open checks
	wantError(t, train.Fill(&b, []int{0}),
		path+": 4 tokens: token 1 is 5; want 0 to 4: more classes, or another type")
	_, _, err := data.Open("tokens", path, data.Options{Window: 1, TrainedOn: &data.Info{Classes: 5}})
	wantError(t, err, path+": token 1 is 5; want 0 to 4: more classes, or another type")
	must.Do(t, os.Truncate(path, 1))
	wantError(t, train.Fill(&b, []int{0}),
		path+": 4 tokens: from token 0: EOF; the file was longer when it was opened")
}
