package data

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// arraySet is a Dataset in memory. Sample i is row i of two arrays. Inputs of Uint8 are delivered as
// Float32, divided by 255 or normalised.
type arraySet struct {
	info   Info
	input  numbers
	target Array
	tables [][256]float32 // of Uint8 inputs, by channel
}

// newArrays returns a data set of inputs [n, ...] and targets [n, ...], which it keeps. With classes 0 the
// greatest label decides.
func newArrays(name string, classes int, input, target Array) (*arraySet, error) {
	if err := cmp.Or(checkArray("inputs", input), checkArray("targets", target)); err != nil {
		return nil, err
	}
	if input.Shape[0] != target.Shape[0] {
		return nil, fmt.Errorf("%d inputs and %d targets; want a target for each input", input.Shape[0],
			target.Shape[0])
	}
	a := &arraySet{input: numbers{Array: input}, target: target}
	a.info = Info{Name: name, Classes: classes, Source: input.Kind,
		Input: Spec{input.Kind, input.Shape[1:]}, Target: Spec{target.Kind, target.Shape[1:]}}
	if shape := a.info.Input.Shape; input.Kind == Float32 && len(shape) == 3 {
		a.info.Pad = make([]float32, shape[0])
	} else if input.Kind == Uint8 {
		a.info.Input.Kind = Float32
		a.tables = a.info.byteTables()
	}
	if err := a.info.checkShapes(); err != nil {
		return nil, err
	}
	if a.info.Task() == Regression {
		a.info.Classes = 0
		return a, nil
	}
	labels := [][]int64{target.Int64, input.Int64}
	if classes == 0 {
		a.info.Classes = classesOf(labels...)
	}
	for i, what := range []string{"target", "input"} {
		for k, label := range labels[i] {
			if label < 0 || label >= int64(a.info.Classes) {
				return nil, fmt.Errorf("%s %d has class %d; want 0 to %d", what,
					k/(len(labels[i])/int(input.Shape[0])), label, a.info.Classes-1)
			}
		}
	}
	if a.info.Classes < 2 {
		return nil, fmt.Errorf("all targets are 0; want at least two classes")
	}
	return a, nil
}

// classesOf returns the greatest label plus 1.
func classesOf(labels ...[]int64) (n int) {
	for _, label := range slices.Concat(labels...) {
		n = max(n, int(label)+1)
	}
	return n
}

// checkShapes returns an error unless inputs and targets belong to one of the tasks.
func (i Info) checkShapes() error {
	in, out := i.Input.Shape, i.Target.Shape
	want := ""
	switch {
	case i.Target.Kind == Uint8:
		want = "int64 for classes, or float32 for numbers"
	case i.Input.Kind == Int64:
		if i.Target.Kind != Int64 || len(in) != 1 || !slices.Equal(in, out) {
			want = "tokens [t] with the tokens that follow, int64 [t], or inputs of float32 or uint8"
		}
	case i.Target.Kind == Float32:
		if len(out) != 1 {
			want = "a row of numbers [k] for each input"
		}
	case len(out) != 0 && (len(in) != 3 || !slices.Equal(in[1:], out)):
		want = "a class for each input, or for each pixel of images [channels height width]"
	}
	if want == "" {
		return nil
	}
	return fmt.Errorf("inputs are %s %v and targets %s %v; want %s", i.Input.Kind, in, i.Target.Kind, out,
		want)
}

// checkArray returns an error if the array is empty, its shape is wrong, or a number is not finite.
func checkArray(what string, a Array) error {
	if len(a.Shape) == 0 || slices.Min(a.Shape) < 1 {
		return fmt.Errorf("%s are of shape %v; want [n, ...] with at least one of each", what, a.Shape)
	}
	size := (Spec{Shape: a.Shape}).Size()
	if n := len(a.Float32) + len(a.Int64) + len(a.Uint8); n != size {
		return fmt.Errorf("%s are %d numbers; want %d for the shape %v", what, n, size, a.Shape)
	}
	row := size / int(a.Shape[0])
	for i, x := range a.Float32 {
		if !finite(float64(x)) {
			return fmt.Errorf("%s: number %d of sample %d is %v; want finite numbers", what, i%row, i/row, x)
		}
	}
	return nil
}

// normalise replaces inputs by (x - mean) / std, by channel. It does nothing if both are nil.
func (a *arraySet) normalise(mean, std []float64) error {
	defer func() { a.input.exact = nil }()
	if mean == nil && std == nil {
		return nil
	}
	a.info.Mean, a.info.Std = mean, std
	if err := a.info.checkNormal(); err != nil {
		return err
	}
	if a.input.Kind == Uint8 {
		a.tables = a.info.byteTables()
		return nil
	}
	size := a.info.Input.Size()
	for row := range a.Len() {
		a.info.normaliseSample(a.input.Float32[row*size:][:size], a.input, row)
	}
	return nil
}

// checkNormal returns an error unless each channel has a finite mean and a deviation above 0.
func (i Info) checkNormal() error {
	if i.Input.Kind != Float32 || len(i.Input.Shape) != 3 || len(i.Mean) != int(i.Input.Shape[0]) ||
		len(i.Std) != len(i.Mean) {
		return fmt.Errorf("mean %v and std %v for inputs %s %v; want a number for each channel of images "+
			"[channels height width], or none", i.Mean, i.Std, i.Input.Kind, i.Input.Shape)
	}
	for c := range i.Mean {
		if !finite(i.Mean[c]) || !finite(i.Std[c]) || i.Std[c] <= 0 {
			return fmt.Errorf("channel %d has mean %v and std %v; want finite numbers and std above 0", c,
				i.Mean[c], i.Std[c])
		}
	}
	return nil
}

// normaliseSample writes (x - Mean) / Std by channel for the numbers x of a row, or x itself without a Mean.
func (i Info) normaliseSample(to []float32, from numbers, row int) {
	for k := range to {
		at := row*len(to) + k
		x := float64(from.Float32[at])
		if from.exact != nil {
			x = from.exact[at]
		}
		if i.Mean != nil {
			c := k / (len(to) / len(i.Mean))
			x = (x - i.Mean[c]) / i.Std[c]
		}
		to[k] = float32(x)
	}
}

// byteTables returns the value of each byte in each channel, and sets Pad. Inputs other than images have one
// channel.
func (i *Info) byteTables() [][256]float32 {
	tables := make([][256]float32, 1)
	if i.Pad = nil; len(i.Input.Shape) == 3 {
		tables, i.Pad = make([][256]float32, i.Input.Shape[0]), make([]float32, i.Input.Shape[0])
	}
	for c := range tables {
		for pixel := range tables[c] {
			// the same bits as torchvision's ToTensor and Normalize
			tables[c][pixel] = float32(pixel) / 255
			if i.Mean != nil {
				tables[c][pixel] = (float32(pixel)/255 - float32(i.Mean[c])) / float32(i.Std[c])
			}
		}
		if i.Pad != nil {
			i.Pad[c] = tables[c][0]
		}
	}
	return tables
}

// finite reports whether x is finite as a float32.
func finite(x float64) bool { return math.Abs(x) <= math.MaxFloat32 }

func (a *arraySet) Len() int   { return int(a.input.Shape[0]) }
func (a *arraySet) Info() Info { return a.info }

func (a *arraySet) Fill(batch *Batch, indices []int) error {
	if err := batch.resize(a, indices); err != nil {
		return err
	}
	in, out := a.info.Input.Size(), a.info.Target.Size()
	for row, index := range indices {
		if a.input.Kind == Uint8 {
			writeBytes(batch.Input.Float32[row*in:][:in], a.input.Uint8[index*in:][:in], a.tables)
		} else {
			copyRow(&batch.Input, row, a.input.Array, index, in)
		}
		copyRow(&batch.Target, row, a.target, index, out)
	}
	return nil
}

func writeBytes(to []float32, from []uint8, tables [][256]float32) {
	plane := len(from) / len(tables)
	for c := range tables {
		table, from, to := &tables[c], from[c*plane:][:plane], to[c*plane:][:plane]
		for i, pixel := range from {
			to[i] = table[pixel]
		}
	}
}
