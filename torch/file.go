package torch

import (
	"fmt"

	"penstock.example/safetensors"
)

// fileDTypes is how files spell element types.
var fileDTypes = map[DType]safetensors.DType{
	Float64: safetensors.F64, Float32: safetensors.F32, BFloat16: safetensors.BF16,
	Int64: safetensors.I64, Int32: safetensors.I32, Uint8: safetensors.U8, Bool: safetensors.Bool,
}

// FileTensor returns a tensor to be written to a safetensors file. Its elements are copied out
// piece by piece while it is written, so t must live until then.
func FileTensor(name string, t *Tensor) safetensors.Tensor {
	load := func(write func([]byte) error) error { return Pieces(t, write) }
	return safetensors.Tensor{Name: name, DType: FileDType(t.DType()), Shape: t.Shape(), Load: load}
}

// FileDType returns the name of an element type in a file. The writer refuses a type that files do
// not have.
func FileDType(d DType) safetensors.DType {
	if spelt, ok := fileDTypes[d]; ok {
		return spelt
	}
	return safetensors.DType(d.String())
}

// DTypeOfFile returns the element type for a name in a file, or an error if penstock does not have
// it.
func DTypeOfFile(spelt safetensors.DType) (DType, error) {
	for d, s := range fileDTypes {
		if s == spelt {
			return d, nil
		}
	}
	return 0, fmt.Errorf("elements of %s, which penstock does not have", spelt)
}
