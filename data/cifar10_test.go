package data_test

import (
	"bytes"
	"fmt"
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
