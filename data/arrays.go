package data

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Arrays is a Dataset of samples in memory: sample i is row i of two arrays. Inputs of Uint8 are
// delivered as Float32, divided by 255 or normalised; others, and targets, as they are.
type Arrays struct {
	info          Info
	input, target Array
	tables        [][256]float32 // of Uint8 inputs: by channel, or one for all
}

// NewArrays returns the data set of inputs [n, ...] and targets [n, ...]. It keeps both. Their kinds say
// the task (Info.Task):
//
//	inputs                           targets              task
//	Float32 or Uint8 [n, ...]        Int64 [n]            classification
//	Float32 or Uint8 [n, c, h, w]    Int64 [n, h, w]      segmentation
//	Float32 or Uint8 [n, ...]        Float32 [n, k]       regression
//	Int64 [n, t]                     Int64 [n, t]         next token
//
// classes is the number of classes; 0 means one more than the greatest target or token. An error names
// the sample: no samples, shapes that do not match, a class that is not in [0, classes), a number that is
// not finite, or a single class.
func NewArrays(name string, classes int, input, target Array) (*Arrays, error) {
	a := &Arrays{input: input, target: target, tables: [][256]float32{byteValues}}
	fail := func(format string, args ...any) (*Arrays, error) {
		return nil, fmt.Errorf("data: %s: %w", name, fmt.Errorf(format, args...))
	}
	if err := cmp.Or(checkArray("inputs", input), checkArray("targets", target)); err != nil {
		return fail("%w", err)
	}
	if input.Shape[0] != target.Shape[0] {
		return fail("%d inputs and %d targets; want a target for each input", input.Shape[0], target.Shape[0])
	}
	a.info = Info{Name: name, Classes: classes, Input: Spec{input.Kind, input.Shape[1:]},
		Target: Spec{target.Kind, target.Shape[1:]}, Source: input.Kind}
	if input.Kind == Uint8 {
		a.info.Input.Kind = Float32
	}
	if shape := a.info.Input.Shape; a.info.Input.Kind == Float32 && len(shape) == 3 {
		a.info.Pad = make([]float32, shape[0])
	}
	if err := a.info.checkShapes(); err != nil {
		return fail("%w", err)
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
				return fail("%s %d has class %d; want 0 to %d", what,
					k/(len(labels[i])/int(input.Shape[0])), label, a.info.Classes-1)
			}
		}
	}
	if a.info.Classes < 2 {
		return fail("all targets are 0; want at least two classes")
	}
	return a, nil
}

// classesOf is one more than the greatest label.
func classesOf(labels ...[]int64) (n int) {
	for _, all := range labels {
		for _, label := range all {
			n = max(n, int(label)+1)
		}
	}
	return n
}

// checkShapes returns an error if targets do not go with inputs.
func (i Info) checkShapes() error {
	in, out := i.Input.Shape, i.Target.Shape
	switch {
	case i.Target.Kind == Uint8:
		return fmt.Errorf("targets are uint8; want int64 for classes, or float32 for numbers")
	case i.Input.Kind == Int64 && i.Target.Kind == Int64 && len(in) == 1 && slices.Equal(in, out):
	case i.Input.Kind == Int64:
		return fmt.Errorf("inputs are int64 %v and targets %v %v; want tokens [t] with the tokens that follow, int64 [t], or inputs of float32 or uint8", in, i.Target.Kind, out)
	case i.Target.Kind == Float32 && len(out) == 1:
	case i.Target.Kind == Float32:
		return fmt.Errorf("targets are float32 %v; want a row of numbers [k] for each input", out)
	case len(out) == 0, len(out) == 2 && len(in) == 3 && slices.Equal(in[1:], out):
	default:
		return fmt.Errorf("targets are int64 %v for inputs %v; want a class for each input, or for each pixel of images [channels height width]", out, in)
	}
	return nil
}

// checkArray returns an error unless the array has rows, as many numbers as its shape says, and all
// of them finite.
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
		if !finite(x) {
			return fmt.Errorf("%s: number %d of sample %d is %v; want finite numbers", what, i%row, i/row, x)
		}
	}
	return nil
}

// byteValues is the value of a byte that is not normalised.
var byteValues = func() (table [256]float32) {
	for i := range table {
		table[i] = float32(i) / 255
	}
	return table
}()

// normalise makes Uint8 images of these mean and deviation.
func (a *Arrays) normalise(mean, std []float32) error {
	shape := a.info.Input.Shape
	if a.input.Kind != Uint8 || len(shape) != 3 {
		return fmt.Errorf("data: %s: inputs are %v %v; want images, uint8 [channels height width], with mean and std, or the two left out", a.info.Name, a.input.Kind, shape)
	}
	tables, err := normalised(a.info.Name, mean, std, int(shape[0]))
	if err != nil {
		return err
	}
	a.tables, a.info.Mean, a.info.Std = tables, mean, std
	for c, table := range tables {
		a.info.Pad[c] = table[0]
	}
	return nil
}

// normalised returns the value of each byte in each channel. Each channel needs a finite mean and a
// deviation above 0.
func normalised(name string, mean, std []float32, channels int) ([][256]float32, error) {
	if len(mean) != channels || len(std) != channels {
		return nil, fmt.Errorf("data: %s: mean %v and std %v, expected a number for each of %d channels",
			name, mean, std, channels)
	}
	tables := make([][256]float32, channels)
	for c := range tables {
		if !finite(mean[c]) || !finite(std[c]) || std[c] <= 0 {
			return nil, fmt.Errorf("data: %s: channel %d has mean %v and std %v, expected finite numbers and std above 0", name, c, mean[c], std[c])
		}
		for pixel := range tables[c] {
			// In float32 and in this order, as torchvision's ToTensor and Normalize compute it: the
			// same bits.
			tables[c][pixel] = (float32(pixel)/255 - mean[c]) / std[c]
		}
	}
	return tables, nil
}

func finite(x float32) bool {
	return !math.IsNaN(float64(x)) && !math.IsInf(float64(x), 0)
}

// Len implements Dataset.
func (a *Arrays) Len() int { return int(a.input.Shape[0]) }

// Info implements Dataset.
func (a *Arrays) Info() Info { return a.info }

// Fill implements Dataset.
func (a *Arrays) Fill(batch *Batch, indices []int) error {
	if err := batch.resize(a, indices); err != nil {
		return err
	}
	in, out := a.info.Input.Size(), a.info.Target.Size()
	for row, index := range indices {
		if a.input.Kind == Uint8 {
			byTables(batch.Input.Float32[row*in:][:in], a.input.Uint8[index*in:][:in], a.tables)
		} else {
			copyRow(&batch.Input, row, a.input, index, in)
		}
		copyRow(&batch.Target, row, a.target, index, out)
	}
	return nil
}

// byTables writes the value of each byte, as its channel's table has it, or the one of all channels.
func byTables(to []float32, from []uint8, tables [][256]float32) {
	plane := len(from) / len(tables)
	for c := range tables {
		table, from, to := &tables[c], from[c*plane:][:plane], to[c*plane:][:plane]
		for i, pixel := range from {
			to[i] = table[pixel]
		}
	}
}
