package link

import (
	"encoding/json"
	"fmt"
	"slices"

	"penstock.example/internal/engine"
	"penstock.example/torch"
)

// layout describes the values of a parcel, so that a receiver can allocate the tensors before they arrive.
type layout [][]slot

// slot describes a value. A tensor moves as its core: every dimension along which it only repeats itself
// is narrowed to one element. The receiver expands it again.
type slot struct {
	Absent  bool `json:",omitempty"`
	Wants   bool `json:",omitempty"`
	Same    int  // the index of the same tensor earlier in the list, or -1
	DType   torch.DType
	Shape   []int64
	Core    []int64 // the shape of the core
	Strides []int64 // of the core, which is dense
}

// bytes returns the size of the core.
func (s slot) bytes() int64 {
	n := itemSize(s.DType)
	for _, size := range s.Core {
		n *= size
	}
	return n
}

// itemSize returns the size of an element, also of types that Go slices do not hold. It is 0 for an unknown
// type.
func itemSize(t torch.DType) int64 {
	switch t {
	case 1: // int8
		return 1
	case 2, 5: // int16, float16
		return 2
	case 9: // complex64
		return 8
	case 10: // complex128
		return 16
	}
	return t.Size()
}

// moves reports whether the slot has a tensor that moves by itself and has elements.
func (s slot) moves() bool { return !s.Absent && s.Same < 0 && s.bytes() > 0 }

func (s slot) equal(o slot) bool {
	return s.Absent == o.Absent && s.Wants == o.Wants && s.Same == o.Same && s.DType == o.DType &&
		slices.Equal(s.Shape, o.Shape) && slices.Equal(s.Core, o.Core) && slices.Equal(s.Strides, o.Strides)
}

// equal reports whether two layouts are the same. A nil layout is none.
func (l layout) equal(o layout) bool {
	return (l == nil) == (o == nil) &&
		slices.EqualFunc(l, o, func(a, b []slot) bool { return slices.EqualFunc(a, b, slot.equal) })
}

// parseLayout reads the JSON of a layout.
func parseLayout(text []byte) (l layout, err error) {
	if err = json.Unmarshal(text, &l); err != nil {
		return nil, fmt.Errorf("link: the description of a parcel: %w", err)
	}
	return l, nil
}

// tensors returns the slots with tensors that move.
func (l layout) tensors() (out []slot) {
	for _, list := range l {
		for _, s := range list {
			if s.moves() {
				out = append(out, s)
			}
		}
	}
	return out
}

// bytes returns the size of all tensors that move.
func (l layout) bytes() (n uint64) {
	for _, s := range l.tensors() {
		n += uint64(s.bytes())
	}
	return n
}

// empty allocates a core.
func (s slot) empty(c *torch.Ctx) *torch.Tensor {
	return engine.EmptyStrided(c, s.DType, s.Core, s.Strides)
}

// coreOf returns a view of t without the dimensions along which t repeats itself, and its strides. A copy to
// another device holds the same. t must be dense: no plan counts a copy that is made here.
func coreOf(c *torch.Ctx, t *torch.Tensor) (core *torch.Tensor, strides []int64, err error) {
	strides = engine.Strides(c, t)
	if !engine.Dense(t.Shape(), strides) {
		const text = "a tensor of shape %v with strides %v has gaps; want it dense"
		return nil, nil, fmt.Errorf(text, t.Shape(), strides)
	}
	core = t
	for d, stride := range strides {
		if stride == 0 && core.Size(d) > 1 {
			core = c.Narrow(core, int64(d), 0, 1)
		}
	}
	return core, strides, nil
}
