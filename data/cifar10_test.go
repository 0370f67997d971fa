package data_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"testing"

	"penstock.example/data"
)

const cifarRecord = 1 + 3*32*32

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

func TestDecodeCIFAR10(t *testing.T) {
	images, labels, err := data.DecodeCIFAR10(bytes.NewReader(cifar(3, 9)), 2)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(images.Shape, []int64{2, 3, 32, 32}) || !slices.Equal(labels.Uint8, []uint8{3, 9}) {
		t.Errorf("images of shape %v, labels %v", images.Shape, labels.Uint8)
	}
	for i, want := range []uint8{30, 31, 32, 90, 91, 92} {
		if plane := images.Uint8[i*1024:][:1024]; slices.Min(plane) != want || slices.Max(plane) != want {
			t.Errorf("plane %d has %d to %d, want %d", i, slices.Min(plane), slices.Max(plane), want)
		}
	}
}

func TestDecodeCIFAR10Refuses(t *testing.T) {
	tests := []struct {
		reason string
		file   []byte
		want   string
	}{
		{"empty", nil, "truncated: 0 bytes of records, expected 6146"},
		{"cut in a record", cifar(1, 2)[:cifarRecord+100], "truncated: 3173 bytes of records, expected 6146"},
		{"cut between records", cifar(1), "truncated: 3073 bytes of records, expected 6146"},
		{"bytes that follow", append(cifar(1, 2), 0), "more bytes follow the expected 6146 of 2 records"},
		{"a label too large", cifar(1, 10), "the label of record 1, byte 3073, is 10, expected 0 to 9"},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			_, _, err := data.DecodeCIFAR10(bytes.NewReader(test.file), 2)
			wantError(t, err, test.want)
		})
	}
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
		train, test, err := data.OpenCIFAR10(directoryOf(t, cifarFiles(under)), data.Options{}, 2)
		if err != nil {
			t.Fatal(err)
		}
		if train.Len() != 10 || test.Len() != 2 {
			t.Errorf("%d samples to train and %d to test, want 10 and 2", train.Len(), test.Len())
		}
		info := train.Info()
		if info.Name != "cifar10" || info.Classes != 10 || !slices.Equal(info.Input.Shape, []int64{3, 32, 32}) {
			t.Errorf("Info() = %+v", info)
		}
		batch := fill(t, train, 7, 2)
		if !slices.Equal(batch.Target.Int64, []int64{7, 2}) {
			t.Errorf("targets %v, want [7 2]", batch.Target.Int64)
		}
		// Blue of sample 7 is 72: (72/255 - 0.4465) / 0.2616.
		if got, want := batch.Input.Float32[2*1024], float32((72.0/255-0.4465)/0.2616); got < want-1e-6 || got > want+1e-6 {
			t.Errorf("blue of sample 7 is %v, want %v", got, want)
		}
	}
}

func TestOpenCIFAR10Refuses(t *testing.T) {
	_, _, err := data.Open("cifar10", "", data.Options{})
	wantError(t, err, "cifar10", "--data-dir", "cifar-10-binary.tar.gz")

	files := cifarFiles("")
	delete(files, "data_batch_4.bin")
	directory := directoryOf(t, files)
	_, _, err = data.OpenCIFAR10(directory, data.Options{}, 2)
	wantError(t, err, "no data_batch_4.bin in "+directory, "cifar-10-batches-bin", "--data-dir")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v is not fs.ErrNotExist", err)
	}

	files = cifarFiles("")
	files["test_batch.bin"] = cifar(1)
	_, _, err = data.OpenCIFAR10(directoryOf(t, files), data.Options{}, 2)
	wantError(t, err, "test_batch.bin", "truncated: 3073 bytes", "expected 6146", "get it again")

	// The real files have 10,000 records each.
	_, _, err = data.Open("cifar10", directoryOf(t, cifarFiles("")), data.Options{})
	wantError(t, err, "data_batch_1.bin", "truncated: 6146 bytes", "expected 30730000")

	_, _, err = data.OpenCIFAR10(directoryOf(t, cifarFiles("")), data.Options{Mean: []float32{0.5}}, 2)
	wantError(t, err, "mean [0.5]", "each of 3 channels")
}

func FuzzDecodeCIFAR10(f *testing.F) {
	f.Add(cifar(1, 2))
	f.Add(cifar(1))
	f.Add(cifar(11, 0))
	f.Add(append(cifar(1, 2), 0))
	f.Fuzz(func(t *testing.T, file []byte) {
		images, labels, err := data.DecodeCIFAR10(bytes.NewReader(file), 2)
		if good := len(file) == 2*cifarRecord && file[0] < 10 && file[cifarRecord] < 10; good != (err == nil) {
			t.Fatalf("error %v for %d bytes", err, len(file))
		}
		if err != nil {
			return
		}
		again := slices.Concat(labels.Uint8[:1], images.Uint8[:3072], labels.Uint8[1:], images.Uint8[3072:])
		if !bytes.Equal(again, file) {
			t.Fatal("the file is read as another")
		}
	})
}
