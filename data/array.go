package data

import (
	"fmt"
	"slices"
)

// Kind is the number format of an Array.
type Kind uint8

// The number formats.
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

// numbers is an Array that was read from a file. exact is Float32 before it was rounded, or nil.
type numbers struct {
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
