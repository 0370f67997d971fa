package link

import (
	"fmt"

	"penstock.example/internal/engine"
	"penstock.example/torch"
)

// layout describes the values of a parcel, so that a receiver can allocate the tensors before they arrive.
type layout [][]slot

// slot describes a value. A tensor moves as its core: every dimension along which it only repeats itself
// is narrowed to one element. The receiver expands the core.
type slot struct {
	Absent  bool `json:",omitempty"`
	Wants   bool `json:",omitempty"`
	Same    int  // the index of an earlier value with the same tensor, or -1
	DType   torch.DType
	Shape   []int64
	Core    []int64 // the shape of the core
	Strides []int64 // of the core, which is dense
}

// bytes returns the size of the core. For a type without a Go counterpart it is an estimate.
func (s slot) bytes() int64 {
	n := max(s.DType.Size(), 2)
	for _, size := range s.Core {
		n *= size
	}
	return n
}

// moves reports whether a message carries the slot's tensor.
func (s slot) moves() bool { return !s.Absent && s.Same < 0 && s.bytes() > 0 }

// moving returns the slots with tensors that move.
func (l layout) moving() (out []slot) {
	for _, list := range l {
		for _, s := range list {
			if s.moves() {
				out = append(out, s)
			}
		}
	}
	return out
}

func (l layout) bytes() (n int64) {
	for _, s := range l.moving() {
		n += s.bytes()
	}
	return n
}

func (s slot) allocate(c *torch.Ctx) *torch.Tensor {
	return engine.EmptyStrided(c, s.DType, s.Core, s.Strides)
}

// coreOf returns the core of t, a view, and t's strides. t must be dense: no plan counts the
// memory of a dense copy.
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
