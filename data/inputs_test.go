package data_test

import (
	"bytes"
	"encoding/json"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"penstock.example/data"
	"penstock.example/internal/must"
)

// npyFile is a file of NumPy of little-endian numbers.
func npyFile(t testing.TB, descr string, numbers any, shape ...int64) string {
	t.Helper()
	return file(t, "x.npy", npyOf(descr, numbers, shape...))
}

func file(t testing.TB, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must.Do(t, os.WriteFile(path, content, 0o666))
	return path
}

// grey writes a picture of these pixels.
func grey(t testing.TB, name string, width int, pixels ...uint8) string {
	t.Helper()
	picture := image.NewGray(image.Rect(0, 0, width, len(pixels)/width))
	copy(picture.Pix, pixels)
	var b bytes.Buffer
	must.Do(t, png.Encode(&b, picture))
	return file(t, name, b.Bytes())
}

func inputs(t testing.TB, info data.Info, paths ...string) *data.Inputs {
	t.Helper()
	text := must.Get(json.Marshal(info))(t)
	var read data.Info
	must.Do(t, json.Unmarshal(text, &read))
	x := must.Get(data.NewInputs(read, nil, paths))(t)
	return x
}

// An image of a set, as a picture and as an array, is the input that the set itself makes of it.
func TestInputsAreTheSets(t *testing.T) {
	pixels := []uint8{0, 51, 102, 255, 7, 9, 11, 13}
	for _, mean := range [][]float32{nil, {0.25}} {
		set, err := data.FromSlices(pixels, []int64{1, 2, 2}, []int{0, 1})
		if mean != nil {
			var err error
			images, err := data.NewImages("images", 2, data.Array{Kind: data.Uint8, Shape: []int64{2, 1, 2, 2}, Uint8: pixels},
				data.Array{Kind: data.Uint8, Shape: []int64{2}, Uint8: []uint8{0, 1}}, mean, []float32{0.5})
			if err != nil {
				t.Fatal(err)
			}
			compareInputs(t, images, grey(t, "0.png", 2, pixels[:4]...), grey(t, "1.png", 2, pixels[4:]...))
			compareInputs(t, images, npyFile(t, "|u1", pixels, 2, 1, 2, 2))
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		compareInputs(t, set, grey(t, "0.png", 2, pixels[:4]...), grey(t, "1.png", 2, pixels[4:]...))
		compareInputs(t, set, npyFile(t, "|u1", pixels, 2, 2, 2))
		compareInputs(t, set, npyFile(t, "|u1", pixels[:4], 2, 2), npyFile(t, "|u1", pixels[4:], 1, 2, 2))
	}
	numbers := []float32{1, 2, 3, 4, 5, 6}
	set := must.Get(data.FromSlices(numbers, []int64{3}, []float32{1, 2}))(t)
	compareInputs(t, set, npyFile(t, "<f4", numbers, 2, 3))
	path := file(t, "x.csv", []byte("1,2,a\n3,5,b\n4,9,a\n6,1,b\n"))
	train, _, err := data.Open("csv", path, data.Options{CSV: data.CSV{Standardise: true}, Holdout: 0.25, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	kept := fill(t, train, 0, 1, 2).Input.Float32
	all := inputs(t, train.Info(), npyFile(t, "<f4", []float32{1, 2, 3, 5, 4, 9, 6, 1}, 4, 2))
	made, found := fill(t, all, 0, 1, 2, 3).Input.Float32, 0
	for row := range slices.Chunk(made, 2) {
		for other := range slices.Chunk(kept, 2) {
			if slices.Equal(row, other) {
				found++
			}
		}
	}
	if found != 3 {
		t.Errorf("%d of the 3 rows to train with are among the inputs: %v and %v", found, kept, made)
	}
}

func compareInputs(t *testing.T, set data.Dataset, paths ...string) {
	t.Helper()
	x := inputs(t, set.Info(), paths...)
	if x.Len() != 2 || !slices.Equal(fill(t, x, 0, 1).Input.Float32, fill(t, set, 0, 1).Input.Float32) {
		t.Errorf("%d inputs: %v; want %v", x.Len(), fill(t, x, 0, 1).Input, fill(t, set, 0, 1).Input)
	}
	path, row := x.Source(1)
	if path != paths[len(paths)-1] || row != 2-len(paths) {
		t.Errorf("input 1 is row %d of %s", row, path)
	}
}

// Of a text the last bytes count; what is missing is zeros, and Length says so.
func TestInputsOfTokens(t *testing.T) {
	text := must.Get(data.NewText([]byte("0123456789"), 4))(t)
	x := inputs(t, text.Info(), file(t, "a.txt", []byte("abcdefg")), file(t, "b.txt", []byte("xy")), npyFile(t, "<i8", []int64{3, 200}, 2, 1))
	want := []int64{'d', 'e', 'f', 'g', 'x', 'y', 0, 0, 3, 0, 0, 0, 200, 0, 0, 0}
	if got := fill(t, x, 0, 1, 2, 3); !slices.Equal(got.Input.Int64, want) {
		t.Errorf("%v; want %v", got.Input.Int64, want)
	}
	for i, want := range []int{4, 2, 1, 1} {
		if got := x.Length(i); got != want {
			t.Errorf("input %d has %d tokens; want %d", i, got, want)
		}
	}
}

// Each refusal names the file, what is there and what is wanted.
func TestInputsRefuses(t *testing.T) {
	images := data.Info{Name: "images", Classes: 2, Input: data.Spec{Kind: data.Float32, Shape: []int64{1, 2, 2}}, Source: data.Uint8}
	numbers := data.Info{Name: "npy", Classes: 2, Input: data.Spec{Kind: data.Float32, Shape: []int64{3}}}
	tokens := data.Info{Name: "tokens", Classes: 9, Input: data.Spec{Kind: data.Int64, Shape: []int64{4}}, Source: data.Int64}
	whole := must.Get(os.ReadFile(grey(t, "a.png", 2, 1, 2, 3, 4)))(t)
	for _, row := range []struct {
		info  data.Info
		path  string
		parts []string
	}{
		{images, "none.png", []string{"none.png: no such file"}},
		{images, t.TempDir(), []string{"not a regular file but a directory"}},
		{images, file(t, "a.png", nil), []string{"a.png: it is empty"}},
		{images, file(t, "a.png", []byte("hello")), []string{"a.png: image: unknown format; want a PNG, JPEG or GIF that is whole, or an .npy of uint8 [1 2 2]"}},
		{images, file(t, "a.png", whole[:20]), []string{"a.png: ", "want a PNG"}},
		{images, npyFile(t, "<f4", make([]float32, 4), 1, 2, 2), []string{"x.npy: it is float32 [1 2 2]; want an .npy of uint8 [1 2 2], or with a dimension more in front"}},
		{images, npyFile(t, "|u1", make([]uint8, 6), 3, 2), []string{"x.npy: it is uint8 [3 2]; want"}},
		{numbers, file(t, "a.txt", []byte("hello")), []string{"a.txt: it is no file of NumPy; want an .npy of float32 [3]"}},
		{numbers, npyFile(t, "<f4", make([]float32, 8), 2, 4), []string{"x.npy: it is float32 [2 4]; want"}},
		{numbers, file(t, "a.npy", []byte("\x93NUMPY\x01")), []string{"a.npy: "}},
		{tokens, npyFile(t, "<i8", []int64{1, 2, 8, 9}, 2, 2), []string{"x.npy: token 1 of row 1 is 9; want 0 to 8: the model was trained with other tokens"}},
		{tokens, npyFile(t, "<i8", []int64{-1}, 1), []string{"token 0 of row 0 is -1"}},
		{tokens, file(t, "a.txt", []byte("hello")), []string{"a.txt: it is no file of NumPy; want an .npy of int64 [n t], tokens from 0 to 8"}},
	} {
		_, err := data.NewInputs(row.info, nil, []string{row.path})
		wantError(t, err, append(row.parts, "data: inputs: ")...)
	}
	// what only decoding shows
	var b bytes.Buffer
	picture := image.NewRGBA(image.Rect(0, 0, 64, 64))
	for i := range 64 * 64 {
		picture.Set(i%64, i/64, color.RGBA{uint8(i * i), uint8(i * 7), uint8(i >> 3), 255})
	}
	must.Do(t, png.Encode(&b, picture))
	path := file(t, "cut.png", b.Bytes()[:b.Len()/2])
	x := inputs(t, images, grey(t, "a.png", 2, 1, 2, 3, 4), path)
	var batch data.Batch
	wantError(t, x.Fill(&batch, []int{0, 1}), path, "want a PNG, JPEG or GIF that is whole")
	if _, err := data.NewInputs(images, nil, nil); err == nil {
		t.Error("no files are taken")
	}
	if _, err := data.NewInputs(data.Info{Input: data.Spec{Shape: []int64{0}}}, nil, []string{path}); err == nil {
		t.Error("a description of nothing is taken")
	}
}
