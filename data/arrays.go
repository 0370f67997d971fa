package data

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Kind is the number format of an Array.
type Kind uint8

const (
	Float32 Kind = iota
	Int64
	Uint8
)

var kindNames = []string{"float32", "int64", "uint8"}

// String returns the kind's name, such as "float32".
func (k Kind) String() string { return kindNames[k] }

// MarshalText returns the kind's name.
func (k Kind) MarshalText() ([]byte, error) { return []byte(kindNames[k]), nil }

// UnmarshalText reads what MarshalText wrote.
func (k *Kind) UnmarshalText(text []byte) error {
	i := slices.Index(kindNames, string(text))
	if i < 0 {
		return fmt.Errorf("data: %q is no number format; want float32, int64 or uint8", text)
	}
	*k = Kind(i)
	return nil
}

// Spec is the kind and the shape of one sample's input or target.
type Spec struct {
	Kind  Kind    `json:"kind"`
	Shape []int64 `json:"shape,omitempty"` // empty for a single number
}

// Size returns the number of elements of the shape.
func (s Spec) Size() int {
	size := 1
	for _, dim := range s.Shape {
		size *= int(dim)
	}
	return size
}

// Array holds numbers in row-major order in the slice of its Kind. The other slices are nil.
type Array struct {
	Kind    Kind
	Shape   []int64
	Float32 []float32
	Int64   []int64
	Uint8   []uint8
}

// fileArray is an Array that was read from a file. exact is Float32 before it was rounded, or nil.
type fileArray struct {
	Array
	exact []float64
}

// Reset resizes the array for rows of spec. It reuses its slice if that is large enough, and does not
// clear it.
func (a *Array) Reset(rows int, spec Spec) {
	size := rows * spec.Size()
	next := Array{Kind: spec.Kind, Shape: append([]int64{int64(rows)}, spec.Shape...)}
	switch next.Kind {
	case Float32:
		next.Float32 = slices.Grow(a.Float32[:0], size)[:size]
	case Int64:
		next.Int64 = slices.Grow(a.Int64[:0], size)[:size]
	case Uint8:
		next.Uint8 = slices.Grow(a.Uint8[:0], size)[:size]
	}
	*a = next
}

func copyRow(to *Array, row int, from Array, index, size int) {
	switch to.Kind {
	case Float32:
		copy(to.Float32[row*size:][:size], from.Float32[index*size:])
	case Int64:
		copy(to.Int64[row*size:][:size], from.Int64[index*size:])
	case Uint8:
		copy(to.Uint8[row*size:][:size], from.Uint8[index*size:])
	}
}

// arraySet is a Dataset in memory. Sample i is row i of two arrays. Inputs of Uint8 are delivered as
// Float32, divided by 255 or normalised.
type arraySet struct {
	info   Info
	input  fileArray
	target Array
	tables [][256]float32 // of Uint8 inputs, by channel
}

// newArrays keeps inputs [n, ...] and targets [n, ...]. classes 0 means the greatest label plus 1.
func newArrays(name string, classes int, input, target Array) (*arraySet, error) {
	if err := cmp.Or(checkArray("inputs", input), checkArray("targets", target)); err != nil {
		return nil, err
	}
	if input.Shape[0] != target.Shape[0] {
		return nil, fmt.Errorf("%d inputs and %d targets; want a target for each input", input.Shape[0],
			target.Shape[0])
	}
	a := &arraySet{input: fileArray{Array: input}, target: target}
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
	if classes == 0 {
		a.info.Classes = max(classesOf(target.Int64), classesOf(input.Int64))
	}
	for i, labels := range [][]int64{target.Int64, input.Int64} {
		for k, label := range labels {
			if label < 0 || label >= int64(a.info.Classes) {
				return nil, fmt.Errorf("%s %d has class %d; want 0 to %d", []string{"target", "input"}[i],
					k/(len(labels)/int(input.Shape[0])), label, a.info.Classes-1)
			}
		}
	}
	if a.info.Classes < 2 {
		return nil, fmt.Errorf("all targets are 0; want at least two classes")
	}
	return a, nil
}

// classesOf returns the greatest label plus 1.
func classesOf(labels []int64) (n int) {
	for _, label := range labels {
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
			want = "int64 targets [t] for int64 inputs [t], the token after each, or other inputs than int64"
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
func (i Info) normaliseSample(to []float32, from fileArray, row int) {
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

// byteTables returns the value of each byte in each channel, and sets Pad of images.
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

type number interface {
	float32 | float64 | int | int32 | int64 | uint8
}

// FromSlices returns a data set of inputs of one shape, concatenated in row-major order, and their
// targets:
//
//	set, err := data.FromSlices(pixels, []int64{3, 32, 32}, labels) // []uint8, []int
//	set, err := data.FromSlices(rows, []int64{13}, prices)          // []float64, []float64
//
// The type of inputs decides their meaning: float32 and float64 are numbers, uint8 are bytes such as an
// image's, and other integers are tokens. Integer targets are classes, from 0 to the greatest: one for
// each input, pixel or token. Other targets are numbers, equally many for each input. Slices of float32
// and int64, and inputs of uint8, are kept and not copied. FromSlices returns an error if lengths do not
// match, a number is not finite, or there is only one class.
func FromSlices[X, Y number](inputs []X, shape []int64, targets []Y) (Dataset, error) {
	x, y := arrayOf(inputs, true), arrayOf(targets, false)
	size := int64((Spec{Shape: shape}).Size())
	if size < 1 || len(inputs) == 0 || int64(len(inputs))%size != 0 {
		return nil, fmt.Errorf("data: slices: %d numbers; want whole inputs %v of %d numbers, at "+
			"least one", len(inputs), shape, size)
	}
	n := int64(len(inputs)) / size
	if len(targets) == 0 || int64(len(targets))%n != 0 {
		return nil, fmt.Errorf("data: slices: %d targets for %d inputs %v; want equally many for "+
			"each input, at least one", len(targets), n, shape)
	}
	x.Shape = append([]int64{n}, shape...)
	y.Shape = []int64{n}
	perInput := int64(len(targets)) / n
	if y.Kind == Int64 && x.Kind != Int64 && perInput > 1 && len(shape) == 3 {
		y.Shape = append(y.Shape, perInput/shape[2], shape[2])
	} else if perInput > 1 || y.Kind == Float32 || x.Kind == Int64 {
		y.Shape = append(y.Shape, perInput)
	}
	set, err := newArrays("slices", 0, x, y)
	return set, named("slices", err)
}

// arrayOf returns an Array without a shape. Bytes become Int64 unless keepBytes.
func arrayOf[N number](numbers []N, keepBytes bool) Array {
	switch all := any(numbers).(type) {
	case []float32:
		return Array{Kind: Float32, Float32: all}
	case []float64:
		return Array{Kind: Float32, Float32: converted[float32](all)}
	case []int64:
		return Array{Kind: Int64, Int64: all}
	case []uint8:
		if keepBytes {
			return Array{Kind: Uint8, Uint8: all}
		}
	}
	return Array{Kind: Int64, Int64: converted[int64](numbers)}
}

func converted[To float32 | int64, From number](numbers []From) []To {
	out := make([]To, len(numbers))
	for i, x := range numbers {
		out[i] = To(x)
	}
	return out
}
