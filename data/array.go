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

// String is the kind's name, such as "float32".
func (k Kind) String() string {
	switch k {
	case Float32:
		return "float32"
	case Int64:
		return "int64"
	case Uint8:
		return "uint8"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// MarshalText makes JSON of a Kind its name.
func (k Kind) MarshalText() ([]byte, error) {
	if k > Uint8 {
		return nil, fmt.Errorf("data: %v; want one of the number formats", k)
	}
	return []byte(k.String()), nil
}

// UnmarshalText reads what MarshalText wrote.
func (k *Kind) UnmarshalText(text []byte) error {
	for _, kind := range []Kind{Float32, Int64, Uint8} {
		if kind.String() == string(text) {
			*k = kind
			return nil
		}
	}
	return fmt.Errorf("data: %q is no number format; want float32, int64 or uint8", text)
}

// Spec is the kind and the shape of one sample's input or target, without the batch's dimension.
type Spec struct {
	Kind  Kind    `json:"kind"`
	Shape []int64 `json:"shape,omitempty"` // empty for a single number
}

// Size returns how many numbers the shape holds.
func (s Spec) Size() int {
	size := 1
	for _, dim := range s.Shape {
		size *= int(dim)
	}
	return size
}

// Array holds numbers in row-major order, in the slice of its Kind. The other slices are nil. The
// zero Array is empty.
type Array struct {
	Kind    Kind
	Shape   []int64
	Float32 []float32
	Int64   []int64
	Uint8   []uint8
}

// Reset sizes the array for rows of spec. It reuses its slice if that is large enough; the numbers
// are whatever was there.
func (a *Array) Reset(rows int, spec Spec) {
	size := rows * spec.Size()
	next := Array{Kind: spec.Kind, Shape: append([]int64{int64(rows)}, spec.Shape...)}
	switch spec.Kind {
	case Float32:
		next.Float32 = slices.Grow(a.Float32[:0], size)[:size]
	case Int64:
		next.Int64 = slices.Grow(a.Int64[:0], size)[:size]
	case Uint8:
		next.Uint8 = slices.Grow(a.Uint8[:0], size)[:size]
	}
	*a = next
}
