package data_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"penstock.example/data"
	"penstock.example/internal/must"
)

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
		{"mnist", nil, data.Options{}, "has no usual place: name the directory of its files; they are at https://"},
		{"mnist", with(mnistFiles(), files{"t10k-labels-idx1-ubyte": nil}), data.Options{}, "no t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte.gz in "},
		{"mnist", with(mnistFiles(), files{"train-images-idx3-ubyte": idx(make([]uint8, 100), 5, 28, 28)}), data.Options{}, "truncated: 100 bytes of the data, expected 3920"},
		{"mnist", with(mnistFiles(), files{"train-images-idx3-ubyte": idx([]uint8{1, 2}, 2)}), data.Options{}, "has the shape [2] and the labels [5], expected [n 28 28] and [n]"},
		{"mnist", with(mnistFiles(), files{"train-labels-idx1-ubyte": idx(make([]uint8, 4), 4)}), data.Options{}, "5 inputs and 4 targets"},
		{"mnist", with(mnistFiles(), files{"t10k-labels-idx1-ubyte": idx([]uint8{1, 2, 10}, 3)}), data.Options{}, "target 2 has class 10; want 0 to 9"},
		{"mnist", mnistFiles(), data.Options{Mean: []float32{1, 2}}, "mean [1 2] and std [0.3081], expected a number for each of 1 channels"},
		{"mnist", mnistFiles(), data.Options{Std: []float32{0}}, "std 0, expected finite numbers and std above 0"},
		{"cifar10", with(cifarFiles(""), files{"data_batch_4.bin": nil}), data.Options{}, "no data_batch_4.bin or "},
		{"cifar10", cifarFiles(""), data.Options{}, "data_batch_1.bin: truncated: 6146 bytes of the data, expected 30730000"},
		{"csv", lines("a,b,c", "1,2,0", "1,2,3,1"), data.Options{}, "line 3: 4 values; want 3, as in the first line"},
		{"csv", lines("a,b,c", "1,2,0", "1,red,1"), data.Options{}, `line 3, column 2: "red"; want a finite number`},
		{"csv", lines("1,2,0", "1,1e39,1"), data.Options{}, `line 2, column 2: "1e39"; want a finite number`},
		{"csv", lines("1,2,0", "1,2,"), data.Options{}, "line 2, column 3: no target; want a class or a number"},
		{"csv", lines("1,2,0", "1,3,0"), data.Options{}, `all targets are ["0"]; want at least two classes`},
		{"csv", lines("a,b"), data.Options{}, "no line with numbers"},
		{"csv", lines("1", "2"), data.Options{}, "line 1: one column; want one for the target"},
		{"csv", lines("a,b", "1,2"), data.Options{CSV: data.CSV{Target: "c"}}, `line 1: no column "c"; want a target of a, b, or a number from 1 to 2`},
		{"csv", lines("1,2", "1,2"), data.Options{CSV: data.CSV{Target: "3"}}, `no column "3"; want a number from 1 to 2`},
		{"csv", lines("a,b,a", "1,2,0"), data.Options{}, `the header has the column "a" twice`},
		{"csv", lines("a,b", "1,\"2"), data.Options{}, "want values that are separated by ','"},
		{"csv", lines(amounts...), data.Options{}, "150 different whole numbers"},
		{"csv", lines("1,2", "1,red"), data.Options{CSV: data.CSV{Task: data.Regression}}, `line 2: the target is "red"; want a finite number`},
		{"csv", lines("1,2"), data.Options{CSV: data.CSV{Task: data.NextToken}}, "Task is next token; want classification or regression"},
		{"csv", files{"train.csv": []byte("1,a\n2,b\n"), "val.csv": []byte("1,a\n2,c\n")}, data.Options{}, "val.csv: line 2: \"c\" is no class to train with; those are a, b"},
		{"csv", files{}, data.Options{}, "name a file, or a directory with train.csv and val.csv or test.csv"},
		{"npy", files{"x.npy": x}, data.Options{}, "no y.npy in "},
		{"npy", files{}, data.Options{}, "name a directory with x.npy and y.npy"},
		{"npy", files{"x.npy": x[:50], "y.npy": y}, data.Options{}, "x.npy: truncated: 40 bytes of the header"},
		{"npy", xy, data.Options{Classes: 1}, "target 1 has class 1; want 0 to 0"},
		{"npy", xy, data.Options{Mean: []float32{1}}, "inputs are float32 [2 1 1]; want images, uint8"},
		{"npy", xy, data.Options{Holdout: 2}, "Holdout is 2; want a share"},
		{"npy", files{"train_x.npy": x, "train_y.npy": y, "test_x.npy": x, "test_y.npy": y}, data.Options{Holdout: 0.5}, "Holdout is 0.5: there is a part to test with"},
		{"npy", files{"train_x.npy": x, "train_y.npy": y, "test_x.npy": npyOf("<f4", make([]float32, 12), 4, 3), "test_y.npy": y}, data.Options{}, "want the same shapes and kinds"},
		{"images", files{}, data.Options{}, "has 0 directories"},
		{"images", files{"cat/a.png": image, "dog/a.txt": nil}, data.Options{}, "dog; want files that end in .png"},
		{"images", files{"train/cat/a.png": image, "train/dog/a.png": image, "val/cow/a.png": image}, data.Options{}, "val/cow is no class to train with; those are cat, dog"},
		{"images", files{"train/cat/a.png": image, "train/dog/a.png": image, "val/x.txt": nil}, data.Options{}, "val; want a directory for each of cat, dog"},
		{"images", files{"cat/a.webp": nil, "dog/a.png": image}, data.Options{}, "cat/a.webp: .webp is not read; want PNG, JPEG or GIF"},
		{"images", files{"a/cat/a.png": image, "b/cat/a.png": image}, data.Options{}, "a/cat is a directory within a class"},
		{"images", classes, data.Options{Size: -1}, "Size is -1; want at least 1"},
		{"images", classes, data.Options{Channels: 2}, "Channels is 2; want 3 for colours"},
		{"images", classes, data.Options{Augment: data.Augment{Scale: 2}}, "Scale is no share"},
		{"synthetic", nil, data.Options{Augment: data.Augment{Scale: 0.5}}, "a set that is read from pictures"},
		{"text", nil, data.Options{}, "has no usual place: name a file, or a directory of .txt files"},
		{"text", files{}, data.Options{}, "no .txt file in "},
		{"text", text("a.txt", "hello"), data.Options{}, "5 bytes, expected at least 129"},
		{"text", text("a.txt", "hello"), data.Options{Window: 4}, "has 5 bytes, expected at least 10"},
		{"text", text("a.txt", "hello"), data.Options{Window: -1}, "Window is -1; want at least 1"},
		{"text", text("a.txt", "one\ntwo caf\xe9"), data.Options{Window: 1, Tokenizer: fixture}, "a.txt: tokenizer: line 2, column 8: byte 0xe9 is not UTF-8"},
		{"text", text("a.txt", "the stages"), data.Options{Window: 1, Tokenizer: t.TempDir()}, "want a tokenizer.json"},
		{"tokens", text("train.bin", "123"), data.Options{Window: 1}, "train.bin: 3 bytes are no whole number of tokens of 2 bytes; want uint16"},
		{"tokens", files{"train.bin": small}, data.Options{Window: 4}, "4 tokens; want at least 5 for one sample"},
		{"tokens", files{"train.bin": small}, data.Options{Window: 2}, "1 samples; want at least 2"},
		{"tokens", files{"train.bin": tokenBytes[uint32](1, 1<<30, 1, 1)}, data.Options{Window: 1, TokenBytes: 4}, "token 1 is 1073741824; want below 1048576: type is another"},
		{"tokens", files{"train.bin": small}, data.Options{TokenBytes: 3}, "TokenBytes is 3; want 2 for uint16, or 4 for uint32"},
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
	numbers := npyOf("<f4", []float32{1, 2}, 2)
	header := func(text string) []byte { return npy(1, text, []float32{1, 2}) }
	for _, row := range []struct {
		decode func([]byte) error
		file   []byte
		want   string
	}{
		{readIDX, good[:3], "truncated: 3 bytes of the magic number, expected 4"},
		{readIDX, good[:9], "truncated: 5 bytes of the dimensions, expected 8"},
		{readIDX, good[:15], "dimensions [2 2]: truncated: 3 bytes of the data, expected 4"},
		{readIDX, append(slices.Clone(good), 0), "dimensions [2 2]: more bytes follow the expected 4"},
		{readIDX, []byte("<!DOCTYPE html>"), "magic number 0x3c21444f, expected 0x000008"},
		{readIDX, idx(nil, 1<<31, 1<<31, 1<<31), "expected the product to be below 2^60"},
		{readIDX, idx([]uint8{1}, 1<<31, 1<<28), "truncated: 1 bytes of the data"}, // which takes no memory
		{readIDX, packed[:len(packed)-3], "gzip data ends early"},
		{readIDX, flipped, "gzip: invalid checksum"},
		{readIDX, zipped(t, good[:15]), "truncated: 3 bytes of the data, expected 4"},
		{readNPY, header("{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }"), "shape [2] of >f4: want float32, float64, int32, int64 or uint8"},
		{readNPY, header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }"), "want an array of one type in C order"},
		{readNPY, header("{'descr': '<f4', 'fortran_order': True, 'shape': (2,), }"), "want an array of one type in C order"},
		{readNPY, header("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }"), "want an array of one type in C order"},
		{readNPY, header("{'descr': '<f4', 'fortran_order': False, 'shape': (1152921504606846976, 9), }"), "below 2^60"},
		{readNPY, append(slices.Clone(numbers), 1), "more bytes follow the expected 8 of data"},
		{readNPY, numbers[:len(numbers)-3], "truncated: 5 bytes of the data, expected 8"},
		{readNPY, []byte("PK\x03\x04 an npz file"), "this is no npy file"},
		{readNPY, npy(4, "{}", []float32{1}), "version 4.0 of the format; want 1.0, 2.0 or 3.0"},
		{readNPY, append(npy(2, "", []float32{1})[:8], 255, 255, 255, 255), "the header has 4294967295 bytes"},
	} {
		wantError(t, row.decode(row.file), row.want)
	}
}

func readIDX(file []byte) error { _, err := data.DecodeIDX(bytes.NewReader(file)); return err }
func readNPY(file []byte) error { _, err := data.DecodeNPY(bytes.NewReader(file)); return err }

// What Fill finds in a file of tokens names the token.
func TestTokensRefuses(t *testing.T) {
	path := filepath.Join(directoryOf(t, map[string][]byte{"a.bin": tokenBytes[uint16](1, 2, 3, 4)}), "a.bin")
	train, _, err := data.Open("tokens", path, data.Options{Window: 1, Classes: 2})
	if err != nil {
		t.Fatal(err)
	}
	var b data.Batch
	wantError(t, train.Fill(&b, []int{0}), path+": token 1 is 2; want 0 to 1: more classes, or another type")
	must.Do(t, os.Truncate(path, 1))
	wantError(t, train.Fill(&b, []int{0}), path+": tokens 0 to 1: EOF; the file was longer when it was opened")
}
