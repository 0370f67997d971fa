package data_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/data"
)

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
		want := data.Array{Shape: shape}
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
		keys := rapid.Permutation([]string{"'descr': '" + descr + "'", "\"fortran_order\":False", "'shape': " + tuple + ")"}).Draw(r, "keys")
		header := "{" + strings.Join(keys, rapid.SampledFrom([]string{",", ", "}).Draw(r, "comma")) + rapid.SampledFrom([]string{"}", ", }", ",}  \n"}).Draw(r, "end")
		content := npy(byte(rapid.IntRange(1, 3).Draw(r, "version")), header, numbers)
		got, err := data.DecodeNPY(bytes.NewReader(content))
		if err != nil {
			r.Fatal(err)
		}
		if got.Kind != want.Kind || !slices.Equal(got.Shape, want.Shape) || !slices.Equal(got.Float32, want.Float32) || !slices.Equal(got.Int64, want.Int64) || !slices.Equal(got.Uint8, want.Uint8) {
			r.Fatalf("%+v, want %+v", got, want)
		}
		cut := rapid.IntRange(0, len(content)-1).Draw(r, "cut")
		if _, err := data.DecodeNPY(bytes.NewReader(content[:cut])); err == nil {
			r.Fatal("a file cut short: no error")
		}
		if _, err := data.DecodeNPY(bytes.NewReader(append(content, 0))); err == nil {
			r.Fatal("a byte too many: no error")
		}
	})
}

func TestDecodeNPYRefuses(t *testing.T) {
	numbers := []float32{1, 2}
	const all = "want 'descr', 'fortran_order' and 'shape'"
	for header, want := range map[string]string{
		"{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }":                     "shape [2] of >f4: want float32, float64, int32, int64 or uint8, little-endian: save x.astype('float32')",
		"{'descr': '|O', 'fortran_order': False, 'shape': (2,), }":                      "of |O: want float32",
		"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }":            "its elements are no numbers",
		"{'descr': '<f4', 'fortran_order': True, 'shape': (2,), }":                      "Fortran order; want C order: save numpy.ascontiguousarray(x)",
		"{'descr': '<f4', 'fortran_order': 0, 'shape': (2,), }":                         "want 'fortran_order': False",
		"{'descr': '<f4', 'fortran_order': False, 'shape': (2), }":                      "tuple of whole numbers",
		"{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }":                    "tuple of whole numbers",
		"{'descr': '<f4', 'fortran_order': False, 'shape': (1,,2), }":                   "tuple of whole numbers",
		"{'descr': '<f4', 'fortran_order': False, 'shape': (2, }":                       "tuple of whole numbers",
		"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387903, 9), }": "below 2^60",
		"{'descr': '<f4', 'fortran_order': False}":                                      all,
		"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,), }":     all,
		"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}":            "key \"more\"",
		"{'descr': '<f4' 'fortran_order': False, 'shape': (2,), }":                      "want a comma",
		"{'descr': '<f4":  "dictionary {...}",
		"":                "dictionary {...}",
		"{'descr'}":       all,
		"{'descr': '<f4}": "its elements are no numbers",
	} {
		_, err := data.DecodeNPY(bytes.NewReader(npy(1, header, numbers)))
		wantError(t, err, want)
	}
	good := npyOf("<f4", numbers, 2)
	_, err := data.DecodeNPY(bytes.NewReader(append(slices.Clone(good), 1)))
	wantError(t, err, "more bytes follow the expected 8 of data")
	_, err = data.DecodeNPY(bytes.NewReader(good[:len(good)-3]))
	wantError(t, err, "truncated: 5 bytes of the data, expected 8")
	_, err = data.DecodeNPY(strings.NewReader("PK\x03\x04 an npz file"))
	wantError(t, err, "this is no npy file")
	_, err = data.DecodeNPY(bytes.NewReader(npy(4, "{}", numbers)))
	wantError(t, err, "version 4.0 of the format; want 1.0, 2.0 or 3.0")
	_, err = data.DecodeNPY(bytes.NewReader(append(npy(2, "", numbers)[:8], 255, 255, 255, 255)))
	wantError(t, err, "the header has 4294967295 bytes")
}

func FuzzDecodeNPY(f *testing.F) {
	f.Add(npyOf("<f4", []float32{1, 2}, 2))
	f.Add(npyOf("|u1", []uint8{1, 2}, 2, 1))
	f.Add(npy(3, "{'descr': '<i8', 'fortran_order': False, 'shape': ()}", []int64{3}))
	f.Fuzz(func(t *testing.T, content []byte) {
		a, err := data.DecodeNPY(bytes.NewReader(content))
		if err != nil {
			return
		}
		if n := len(a.Float32) + len(a.Int64) + len(a.Uint8); n != (data.Spec{Shape: a.Shape}).Size() {
			t.Errorf("%d numbers of shape %v", n, a.Shape)
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
		"classes":    {npyOf("<f8", make([]float64, 40), 10, 4), npyOf("<i4", []int32{0, 1, 2, 0, 1, 2, 0, 1, 2, 0}, 10), data.Classification, []int64{4, 1, 1}, nil, 3},
		"column":     {npyOf("<f4", make([]float32, 40), 10, 4), npyOf("|u1", []uint8{0, 1, 2, 0, 1, 2, 0, 1, 2, 0}, 10, 1), data.Classification, []int64{4, 1, 1}, nil, 3},
		"regression": {npyOf("<f4", make([]float32, 40), 10, 4), npyOf("<f8", make([]float64, 10), 10), data.Regression, []int64{4, 1, 1}, []int64{1}, 1},
		"masks":      {npyOf("|u1", make([]uint8, 120), 10, 3, 2, 2), npyOf("<i8", append(make([]int64, 39), 1), 10, 2, 2), data.Segmentation, []int64{3, 2, 2}, []int64{2, 2}, 2},
		"tokens":     {npyOf("<i8", append(make([]int64, 39), 9), 10, 4), npyOf("<i8", make([]int64, 40), 10, 4), data.NextToken, []int64{4}, []int64{4}, 10},
	} {
		train, test, err := data.Open("npy", directoryOf(t, map[string][]byte{"x.npy": row.x, "y.npy": row.y}), data.Options{Holdout: 0.3})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		info := train.Info()
		if train.Len() != 7 || test.Len() != 3 || info.Task() != row.task || info.Outputs() != row.outputs || !slices.Equal(info.Input.Shape, row.input) || !slices.Equal(info.Target.Shape, row.target) {
			t.Errorf("%s: %d and %d samples of %+v", name, train.Len(), test.Len(), info)
		}
	}
	bytes, labels := npyOf("|u1", []uint8{0, 255, 51, 102}, 2, 1, 2, 1), npyOf("<i8", []int64{0, 1}, 2)
	parts := map[string][]byte{"train_x.npy": bytes, "train_y.npy": labels, "val_x.npy": bytes, "val_y.npy": npyOf("<i8", []int64{0, 4}, 2)}
	train, test, err := data.Open("npy", directoryOf(t, parts), data.Options{Mean: []float32{0.5}, Std: []float32{0.5}})
	if err != nil {
		t.Fatal(err)
	}
	if got := fill(t, train, 0).Input.Float32; !slices.Equal(got, []float32{-1, 1}) || train.Info().Classes != 5 || test.Info().Classes != 5 || !slices.Equal(train.Info().Pad, []float32{-1}) {
		t.Errorf("%v, %+v", got, train.Info())
	}
	paths, err := data.Files("npy", directoryOf(t, parts), data.Options{})
	if err != nil || len(paths) != 4 || filepath.Base(paths[3]) != "val_y.npy" {
		t.Errorf("%v, %v", paths, err)
	}
}

func TestOpenNPYRefuses(t *testing.T) {
	x, y := npyOf("<f4", make([]float32, 8), 4, 2), npyOf("<i8", []int64{0, 1, 0, 1}, 4)
	for name, row := range map[string]struct {
		files   map[string][]byte
		options data.Options
		want    []string
	}{
		"nothing":      {nil, data.Options{}, []string{"neither x.npy nor train_x.npy in ", "name a directory with x.npy and y.npy"}},
		"no targets":   {map[string][]byte{"x.npy": x}, data.Options{}, []string{"no y.npy in ", "which has the targets of ", "x.npy"}},
		"damaged":      {map[string][]byte{"x.npy": x[:50], "y.npy": y}, data.Options{}, []string{"x.npy: truncated: 40 bytes of the header"}},
		"other length": {map[string][]byte{"x.npy": npyOf("<f4", make([]float32, 6), 3, 2), "y.npy": y}, data.Options{}, []string{"3 inputs and 4 targets", "x.npy and "}},
		"one class":    {map[string][]byte{"x.npy": x, "y.npy": npyOf("<i8", make([]int64, 4), 4)}, data.Options{}, []string{"all targets are 0; want at least two classes", "y.npy"}},
		"few classes":  {map[string][]byte{"x.npy": x, "y.npy": y}, data.Options{Classes: 1}, []string{"target 1 has class 1; want 0 to 0"}},
		"mean":         {map[string][]byte{"x.npy": x, "y.npy": y}, data.Options{Mean: []float32{1}}, []string{"inputs are float32 [2 1 1]; want images, uint8"}},
		"share":        {map[string][]byte{"x.npy": x, "y.npy": y}, data.Options{Holdout: 2}, []string{"Holdout is 2; want a share"}},
		"holdout":      {map[string][]byte{"train_x.npy": x, "train_y.npy": y, "test_x.npy": x, "test_y.npy": y}, data.Options{Holdout: 0.5}, []string{"test_x.npy is there to test with"}},
		"other kind": {map[string][]byte{"train_x.npy": x, "train_y.npy": y, "test_x.npy": npyOf("<f4", make([]float32, 12), 4, 3), "test_y.npy": y}, data.Options{},
			[]string{"want the same shapes and kinds", "test_x.npy"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := data.Open("npy", directoryOf(t, row.files), row.options)
			wantError(t, err, append(row.want, "data: npy: ")...)
		})
	}
	_, _, err := data.Open("npy", "", data.Options{})
	wantError(t, err, "data: npy has no usual place")
}
