package data_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strings"
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

func TestDecodeIDXRefuses(t *testing.T) {
	good := idx([]uint8{1, 2, 3, 4}, 2, 2)
	packed := zipped(t, bytes.Repeat(good, 1))
	flipped := slices.Clone(packed)
	flipped[len(flipped)-5] ^= 1 // in the checksum
	tests := []struct {
		reason string
		file   []byte
		want   string
	}{
		{"empty", nil, "truncated: 0 bytes of the magic number, expected 4"},
		{"cut in the magic number", good[:3], "truncated: 3 bytes of the magic number, expected 4"},
		{"cut in the dimensions", good[:9], "truncated: 5 bytes of the dimensions, expected 8"},
		{"cut in the data", good[:15], "dimensions [2 2]: truncated: 3 bytes of the data, expected 4"},
		{"bytes that follow", append(slices.Clone(good), 0), "dimensions [2 2]: more bytes follow the expected 4"},
		{"another magic number", []byte("<!DOCTYPE html>"), "magic number 0x3c21444f, expected 0x000008"},
		{"numbers that are no bytes", []byte{0, 0, 0x0d, 1, 0, 0, 0, 0}, "magic number 0x00000d01"},
		{"no dimensions", []byte{0, 0, 8, 0, 1}, "magic number 0x00000800"},
		{"dimensions that overflow", idx(nil, 1<<31, 1<<31, 1<<31), "expected their product to be below 2^62"},
		{"dimensions that lie", idx([]uint8{1}, 1<<31, 1<<30), "truncated: 1 bytes of the data, expected 2305843009213693952"},
		{"gzip cut in its header", packed[:5], "gzip data is damaged: it ends early"},
		{"gzip cut in its data", packed[:len(packed)-12], "gzip data is damaged: it ends early"},
		{"gzip cut in its checksum", packed[:len(packed)-3], "gzip data is damaged: it ends early"},
		{"gzip with another checksum", flipped, "gzip data is damaged: gzip: invalid checksum"},
		{"gzip with bytes that follow", append(slices.Clone(packed), "junk of some length"...), "gzip data is damaged: gzip: invalid header"},
		{"gzip of a shorter array", zipped(t, good[:15]), "truncated: 3 bytes of the data, expected 4"},
		{"gzip of something else", zipped(t, []byte("hello")), "magic number 0x68656c6c"},
		{"gzip's first bytes alone", []byte{0x1f, 0x8b}, "gzip data is damaged"},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			_, err := data.DecodeIDX(bytes.NewReader(test.file))
			wantError(t, err, test.want)
		})
	}
}

// What the disk says is not taken for damage of the file.
func TestDecodeIDXPassesErrorsOn(t *testing.T) {
	disk := errors.New("the disk is on fire")
	packed := zipped(t, idx(make([]uint8, 100), 100))
	for _, file := range [][]byte{nil, idx(nil, 4), packed[:3], packed[:len(packed)-4]} {
		_, err := data.DecodeIDX(io.MultiReader(bytes.NewReader(file), iotest.ErrReader(disk)))
		if !errors.Is(err, disk) || strings.Contains(err.Error(), "damaged") {
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
