package data_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/iotest"

	"penstock.example/data"
)

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
	for name, file := range map[string][]byte{"plain": plain, "gzip": zipped(t, plain), "gzip in two members": append(zipped(t, plain[:9]), zipped(t, plain[9:])...)} {
		array, err := data.DecodeIDX(bytes.NewReader(file))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if array.Kind != data.Uint8 || !slices.Equal(array.Shape, []int64{1, 2, 3}) || !slices.Equal(array.Uint8, numbers) {
			t.Errorf("%s: got %v", name, array)
		}
	}
	empty, err := data.DecodeIDX(bytes.NewReader(idx(nil, 0, 28, 28)))
	if err != nil || !slices.Equal(empty.Shape, []int64{0, 28, 28}) || len(empty.Uint8) != 0 {
		t.Errorf("without numbers: %v, %v", empty, err)
	}
}

// What the disk says is not taken for damage of the file.
func TestDecodeIDXPassesErrorsOn(t *testing.T) {
	disk := errors.New("the disk is on fire")
	packed := zipped(t, idx(make([]uint8, 100), 100))
	for _, file := range [][]byte{nil, idx(nil, 4), packed[:3], packed[:len(packed)-4]} {
		_, err := data.DecodeIDX(io.MultiReader(bytes.NewReader(file), iotest.ErrReader(disk)))
		if !errors.Is(err, disk) {
			t.Errorf("after %d bytes: error %v, want the reader's", len(file), err)
		}
	}
}

func FuzzDecodeIDX(f *testing.F) {
	f.Add(idx([]uint8{1, 2, 3, 4}, 2, 2))
	f.Add(idx(nil, 1<<31, 1<<30))
	f.Add(idx(nil, 0))
	f.Add([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff})
	f.Fuzz(func(t *testing.T, file []byte) {
		array, err := data.DecodeIDX(bytes.NewReader(file))
		if err != nil {
			return
		}
		size := data.Spec{Shape: array.Shape}.Size()
		if len(array.Uint8) != size {
			t.Fatalf("%d numbers of shape %v", len(array.Uint8), array.Shape)
		}
		if file[0] != 0 {
			return // gzip: many files, one content
		}
		dims := make([]uint32, len(array.Shape))
		for i, dim := range array.Shape {
			dims[i] = uint32(dim)
		}
		if again := idx(array.Uint8, dims...); !bytes.Equal(again, file) {
			t.Fatalf("%x is read as what is written %x", file, again)
		}
	})
}
