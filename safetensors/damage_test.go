package safetensors_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock.example/safetensors"
)

func TestDamagedFiles(t *testing.T) {
	entry := func(fields string) string { return `{"w":{` + fields + `}}` }
	const u8 = `"dtype":"U8","shape":[1],`
	tests := []struct {
		reason string
		file   []byte
		offset int64  // 0 leaves the offset unchecked
		tensor string // the tensor named by the error
		want   string
	}{
		{"empty", nil, 0, "", "the file has 0 bytes, expected at least the 8"},
		{"half a length", []byte{1, 2, 3}, 0, "", "the file has 3 bytes"},
		{"another kind of file: zip, which PyTorch's own files are", []byte("PK\x03\x04\x00\x00\x08\x08rest"), 0, "", "it is a file of PyTorch; want the state_dict that it holds, as safetensors.torch.save_file(state, FILE) writes it"},
		{"a pickle", []byte("\x80\x02\x8a\nl\xfc\x9cFrest"), 0, "", "it is a file of PyTorch; want"},
		{"a pickle with a frame", []byte("\x80\x04\x95\x12\x00\x00\x00\x00rest"), 0, "", "it is a file of PyTorch; want"},
		{"length of 2^64-1", []byte("\xff\xff\xff\xff\xff\xff\xff\xff{}"), 0, "", "18446744073709551615"},
		{"header above the limit", []byte("\x01\xe1\xf5\x05\x00\x00\x00\x00{}"), 0, "", "length is 100000001"},
		{"header cut", raw(`{"w":`, "")[:10], 0, "", "length is 5, the file has 2 bytes left"},
		{"no header", raw("", ""), 8, "", "starts with nothing, expected '{'"},
		{"not an object", raw("[]", ""), 8, "", "starts with '[', expected '{'"},
		{"space before", raw(" {}", ""), 8, "", "starts with ' '"},
		{"not JSON", raw(`{"w":}`, ""), 13, "", "not JSON: invalid character '}'"},
		{"JSON that ends early", raw(`{"w":`, ""), 12, "", "not JSON: unexpected end"},
		{"two objects", raw(`{}{}`, ""), 10, "", "not JSON: invalid character '{' after top-level value"},
		{"zeros for padding", raw("{}\x00\x00", ""), 10, "", "not JSON"},
		{"newline for padding", raw("{}\n", ""), 10, "", `padded with '\n', expected spaces`},
		{"not UTF-8", raw("{\"\xff\":0}", ""), 10, "", "the byte 0xff where UTF-8"},

		{"two equal names", raw(`{"w":{`+u8+`"data_offsets":[0,1]},"w":{`+u8+`"data_offsets":[0,1]}}`, "x"), 0, "", `has the key "w" twice`},
		{"two equal names, one escaped", raw(`{"w":{`+u8+`"data_offsets":[0,1]},"\u0077":{`+u8+`"data_offsets":[0,1]}}`, "x"), 0, "", `has the key "w" twice`},
		{"two metadata", raw(`{"__metadata__":{},"__metadata__":{}}`, ""), 0, "", `"__metadata__" twice`},
		{"two equal metadata keys", raw(`{"__metadata__":{"a":"1","a":"1"}}`, ""), 0, "", `__metadata__ has the key "a" twice`},
		{"two shapes", raw(entry(u8+`"shape":[1],"data_offsets":[0,1]`), "x"), 0, "w", `has the key "shape" twice`},
		{"metadata that is no map", raw(`{"__metadata__":null}`, ""), 0, "", "__metadata__ is null, expected an object"},
		{"metadata that is no string", raw(`{"__metadata__":{"a":1}}`, ""), 0, "", `"a" is 1, expected a string`},

		{"an entry that is no object", raw(`{"w":[1]}`, ""), 14, "w", "the tensor's entry is an array, expected an object"},
		{"an unknown key", raw(entry(u8+`"stride":[1],"data_offsets":[0,1]`), "x"), 0, "w", `the key "stride", expected dtype, shape and data_offsets`},
		{"a key in capitals", raw(entry(`"DTYPE":"U8","shape":[1],"data_offsets":[0,1]`), "x"), 0, "w", `the key "DTYPE"`},
		{"no dtype", raw(entry(`"shape":[1],"data_offsets":[0,1]`), "x"), 0, "w", "has no dtype"},
		{"no shape", raw(entry(`"dtype":"U8","data_offsets":[0,1]`), "x"), 0, "w", "has no shape"},
		{"no offsets", raw(entry(`"dtype":"U8","shape":[1]`), "x"), 0, "w", "has no data_offsets"},
		{"dtype of another kind", raw(entry(`"dtype":8,"shape":[1],"data_offsets":[0,1]`), "x"), 0, "w", "dtype is 8, expected a string"},
		{"unknown dtype", raw(entry(`"dtype":"F4","shape":[1],"data_offsets":[0,1]`), "x"), 0, "w", `unknown dtype "F4"`},
		{"shape of another kind", raw(entry(`"dtype":"U8","shape":1,"data_offsets":[0,1]`), "x"), 0, "w", "shape is 1, expected an array"},
		{"null shape", raw(entry(`"dtype":"U8","shape":null,"data_offsets":[0,1]`), "x"), 0, "w", "shape is null, expected an array"},
		{"nested shape", raw(entry(`"dtype":"U8","shape":[[1]],"data_offsets":[0,1]`), "x"), 0, "w", "shape has an array, expected an integer"},
		{"negative dimension", raw(entry(`"dtype":"U8","shape":[-1],"data_offsets":[0,1]`), "x"), 0, "w", "shape has -1, expected an integer from 0"},
		{"dimension with a fraction", raw(entry(`"dtype":"U8","shape":[1.0],"data_offsets":[0,1]`), "x"), 0, "w", "shape has 1.0"},
		{"dimension with an exponent", raw(entry(`"dtype":"U8","shape":[1e0],"data_offsets":[0,1]`), "x"), 0, "w", "shape has 1e0"},
		{"dimension of 2^63", raw(entry(`"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]`), "x"), 0, "w", "9223372036854775808, expected an integer from 0 to 2^63-1"},
		{"a product that overflows to 0", raw(entry(`"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]`), ""), 0, "w", "overflows"},
		{"a product that overflows to 1", raw(entry(`"dtype":"U8","shape":[6700417,641,4294967297,4294967295],"data_offsets":[0,1]`), "x"), 0, "w", "overflows"},
		{"one offset", raw(entry(u8+`"data_offsets":[0]`), "x"), 0, "w", "[0] has 1 numbers"},
		{"three offsets", raw(entry(u8+`"data_offsets":[0,1,2]`), "x"), 0, "w", "has 3 numbers"},
		{"offsets backwards", raw(entry(u8+`"data_offsets":[1,0]`), "x"), 0, "w", "[1 0] end before they begin"},
		{"size", raw(entry(`"dtype":"F32","shape":[2,3],"data_offsets":[0,20]`), strings.Repeat("x", 20)), 0, "w", "shape [2 3] of F32 takes 24 bytes, data_offsets [0 20] hold 20"},

		{"data cut", raw(entry(`"dtype":"U8","shape":[4],"data_offsets":[0,4]`), "xxx"), 61, "w", "[0 4] end beyond the 3 bytes of data in the file: it is truncated"},
		{"bytes after", raw(entry(u8+`"data_offsets":[0,1]`), "xyz"), 62, "", `2 bytes follow tensor "w", expected the end of the file`},
		{"bytes after nothing", raw(`{}`, "x"), 10, "", "1 bytes follow the data's start"},
		{"gap before", raw(entry(u8+`"data_offsets":[1,2]`), "xy"), 62, "w", "leave a gap of 1 bytes after the data's start, expected begin 0"},
		{"gap between", raw(`{"v":{`+u8+`"data_offsets":[0,1]},"w":{`+u8+`"data_offsets":[2,3]}}`, "xyz"), 0, "w", `gap of 1 bytes after tensor "v", expected begin 1`},
		{"overlap", raw(`{"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, "xyz"), 0, "w", `overlap tensor "v", expected begin 2`},
		{"the same place twice", raw(`{"v":{`+u8+`"data_offsets":[0,1]},"w":{`+u8+`"data_offsets":[0,1]}}`, "x"), 0, "w", `overlap tensor "v"`},
		{"an empty tensor inside another", raw(`{"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}}`, "xy"), 0, "w", `overlap tensor "v"`},
		{"offsets far beyond", raw(entry(`"dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807]`), "x"), 0, "w", "end beyond the 1 bytes"},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			_, err := parse(test.file)
			var format *safetensors.FormatError
			if !errors.As(err, &format) {
				t.Fatalf("error %v, want a FormatError", err)
			}
			if !strings.Contains(format.Problem, test.want) {
				t.Errorf("problem %q, want %q in it", format.Problem, test.want)
			}
			if format.Tensor != test.tensor {
				t.Errorf("tensor %q, want %q", format.Tensor, test.tensor)
			}
			if test.offset != 0 && format.Offset != test.offset {
				t.Errorf("offset %d, want %d", format.Offset, test.offset)
			}
		})
	}
}

// Each prefix of a good file, and a good file with a byte too many, is a damaged one.
func TestEveryTruncation(t *testing.T) {
	whole := raw(smallHeader, smallData)
	for n := range len(whole) {
		if _, err := parse(whole[:n]); err == nil {
			t.Errorf("a file of %d bytes, cut after %d, is read without an error", len(whole), n)
		}
	}
	if _, err := parse(append(whole, 0)); err == nil {
		t.Error("a file with a byte too many is read without an error")
	}
}

func TestDamagedBool(t *testing.T) {
	file, err := parse(raw(`{"m":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}}`, "\x01\x02"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.Read("m")
	const want = `safetensors: byte 63: tensor "m": element 1 of BOOL is the byte 2, expected 0 or 1`
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %v", err, want)
	}
}

func TestErrorNamesThePath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.safetensors")
	if err := os.WriteFile(path, raw("[]", ""), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := safetensors.Open(path)
	if want := "safetensors: " + path + ": byte 8: the header starts with '[', expected '{'"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %v", err, want)
	}
}

// A file may shrink between the index and the reading.
func TestFileThatShrinks(t *testing.T) {
	whole := raw(smallHeader, smallData)
	file, err := safetensors.NewFile(bytes.NewReader(whole[:len(whole)-1]), int64(len(whole)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.Read("a.mask"); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "a.mask") {
		t.Errorf("error %v, want an unexpected EOF for a.mask", err)
	}
}

// FuzzNewFile: no input makes the reader panic or accept a file that does not come out the same when it is written again
// and read again. That no header makes it allocate more than the file holds is seen in the fuzzer's own memory.
func FuzzNewFile(f *testing.F) {
	f.Add(raw(smallHeader, smallData))
	f.Add(raw(`{"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}}`, strings.Repeat("\x00", 24)))
	f.Add(raw(`{"w":{"dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807]}}`, "x"))
	f.Add([]byte("\x00\xe1\xf5\x05\x00\x00\x00\x00{}"))
	f.Fuzz(func(t *testing.T, file []byte) {
		read, err := parse(file)
		if err != nil {
			return
		}
		var tensors []safetensors.Tensor
		size := 0
		for _, header := range read.Tensors() {
			tensor, err := read.Read(header.Name)
			if err != nil {
				return // a damaged BOOL
			}
			tensors = append(tensors, tensor)
			size += len(tensor.Data)
		}
		if size > len(file) {
			t.Fatalf("%d bytes of tensors in a file of %d", size, len(file))
		}
		var first, second bytes.Buffer
		if err := safetensors.Write(&first, tensors, read.Metadata()); err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		again, err := parse(first.Bytes())
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		if err := safetensors.Write(&second, tensors, again.Metadata()); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Fatal("written twice, the file differs")
		}
	})
}
