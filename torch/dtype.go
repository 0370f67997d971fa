package torch

import (
	"fmt"
	"math"
)

// DType is the type of a tensor's elements. The values are c10::ScalarType's.
type DType int

// The element types that can be copied from and to Go slices.
const (
	Uint8    DType = 0
	Int32    DType = 3
	Int64    DType = 4
	Float32  DType = 6
	Float64  DType = 7
	Bool     DType = 11
	BFloat16 DType = 15
)

var dtypes = map[DType]struct {
	name string
	size int64
}{
	Uint8: {"uint8", 1}, Int32: {"int32", 4}, Int64: {"int64", 8}, Float32: {"float32",
		4}, Float64: {"float64", 8},
	Bool: {"bool", 1}, BFloat16: {"bfloat16", 2},
}

// String is PyTorch's name of the type, such as "float32".
func (d DType) String() string {
	if t, ok := dtypes[d]; ok {
		return t.name
	}
	return fmt.Sprintf("dtype(%d)", int(d))
}

// Size is the number of bytes of one element; 0 for a type that Go slices do not hold.
func (d DType) Size() int64 { return dtypes[d].size }

// IsFloat says whether the elements can carry gradients.
func (d DType) IsFloat() bool { return d >= 5 && d <= 10 || d == BFloat16 }

// BF16 is a bfloat16 number: the upper half of a float32.
type BF16 uint16

// ToBF16 rounds to nearest even, as libtorch does. NaN stays NaN.
func ToBF16(f float32) BF16 {
	bits := math.Float32bits(f)
	if f != f {
		return 0x7fc0
	}
	return BF16((bits + 0x7fff + bits>>16&1) >> 16)
}

// Float32 is the exact value of b.
func (b BF16) Float32() float32 { return math.Float32frombits(uint32(b) << 16) }

// Element is a Go type that a tensor's elements can be copied from and to.
type Element interface {
	float32 | float64 | BF16 | int64 | int32 | uint8 | bool
}

func dtypeOf[T Element]() DType {
	var zero T
	switch any(zero).(type) {
	case float32:
		return Float32
	case float64:
		return Float64
	case BF16:
		return BFloat16
	case int64:
		return Int64
	case int32:
		return Int32
	case uint8:
		return Uint8
	default:
		return Bool
	}
}
