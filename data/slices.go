package data

import "fmt"

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
		return nil, fmt.Errorf("data: slices: %d numbers; want a multiple, above 0, of the %d of an "+
			"input %v", len(inputs), size, shape)
	}
	n := int64(len(inputs)) / size
	if len(targets) == 0 || int64(len(targets))%n != 0 {
		return nil, fmt.Errorf("data: slices: %d targets for %d inputs %v; want a multiple, above 0",
			len(targets), n, shape)
	}
	x.Shape = append([]int64{n}, shape...)
	y.Shape = []int64{n}
	each := int64(len(targets)) / n
	if y.Kind == Int64 && x.Kind != Int64 && each > 1 && len(shape) == 3 {
		y.Shape = append(y.Shape, each/shape[2], shape[2])
	} else if each > 1 || y.Kind == Float32 || x.Kind == Int64 {
		y.Shape = append(y.Shape, each)
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
