package torch

import (
	"fmt"
	"reflect"

	"penstock.example/safetensors"
)

// DType is the type of a tensor's elements. The values are c10::ScalarType's.
type DType int

// The element types that can be copied between tensors and Go's memory.
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
	file safetensors.DType
}{
	Uint8:    {"uint8", 1, safetensors.U8},
	Int32:    {"int32", 4, safetensors.I32},
	Int64:    {"int64", 8, safetensors.I64},
	Float32:  {"float32", 4, safetensors.F32},
	Float64:  {"float64", 8, safetensors.F64},
	Bool:     {"bool", 1, safetensors.Bool},
	BFloat16: {"bfloat16", 2, safetensors.BF16},
}

// String returns PyTorch's name, such as "float32".
func (d DType) String() string {
	if t, ok := dtypes[d]; ok {
		return t.name
	}
	return fmt.Sprintf("dtype(%d)", int(d))
}

// Size is the number of bytes of one element; 0 for a type that Go's memory does not hold.
func (d DType) Size() int64 { return dtypes[d].size }

// IsFloat reports whether the elements can have gradients.
func (d DType) IsFloat() bool { return d >= 5 && d <= 10 || d == BFloat16 }

// FileDType returns the name of an element type in a safetensors file. Package safetensors refuses
// the names of types that files do not have.
func FileDType(d DType) safetensors.DType {
	if t, ok := dtypes[d]; ok {
		return t.file
	}
	return safetensors.DType(d.String())
}

// element is a Go type whose values can be copied to and from tensors.
type element interface {
	float32 | float64 | int64 | int32 | uint8 | bool
}

func dtypeOf[T element]() DType { return goTypes[reflect.TypeFor[T]().Kind()] }

var goTypes = map[reflect.Kind]DType{reflect.Float32: Float32, reflect.Float64: Float64, reflect.Int64: Int64,
	reflect.Int32: Int32, reflect.Uint8: Uint8, reflect.Bool: Bool}
