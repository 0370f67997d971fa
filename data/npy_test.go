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
	"penstock.example/internal/must"
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
		got := must.Get(data.DecodeNPY(bytes.NewReader(content)))(r)
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
