package profile

import (
	"penstock/torch"
)

// block is memory that a layer's output lies in. Outputs of several layers may lie in one: views, and layers that work in place.
type block struct {
	creator int   // the layer that allocated it, or nobody
	saver   int   // the last layer that saves it for backward, or nobody
	bytes   int64 // of the block
}

// nobody saves what no layer saves, and has created what is held anyway: the model's input, and parameters.
const nobody = -1

// bytes runs the layer once and finds what is held of it until backward. Every input is a copy that nothing but this forward knows; when the forward is over, the handles on each block are let
// go of, and the account tells whether the graph still holds it. What remains beyond such blocks the layer allocated and saved for itself.
func (m *measurement) bytes(out *result) {
	c := m.c
	defer c.SetGrad(c.SetGrad(true))
	mark := c.Mark()
	defer func() { c.Release(mark) }()
	live := func() int64 { return m.Device.Memory().Live }
	before := live()

	blocks := map[uintptr]*block{} // by storage
	handles := map[uintptr][]*torch.Tensor{}
	var order []uintptr
	add := func(t *torch.Tensor, b *block) {
		id, _ := t.Storage()
		if blocks[id] == nil {
			blocks[id] = b
			order = append(order, id)
		}
		handles[id] = append(handles[id], t)
	}
	for _, p := range m.layers[m.at].State() {
		id, _ := p.Tensor().Storage()
		blocks[id] = &block{creator: nobody, saver: nobody} // a layer may return it
	}
	inputs := map[uintptr]*torch.Tensor{}
	changed := func() bool { return false }
	ys, stashed, _ := m.run(func(f flow) *torch.Tensor {
		id, _ := f.t.Storage()
		x := inputs[id]
		if x == nil {
			x = c.Clone(c.Detach(f.t).SetRequiresGrad(f.grad))
			inputs[id] = x
			given, changes, before := x, x.Changes(), changed
			changed = func() bool { return before() || given.Changes() != changes }
		} else {
			x = c.Share(x)
		}
		add(x, f.block)
		return x
	})

	m.overwrote = append(m.overwrote, changed())

	around := int64(0) // allocated here and now, and not for the layer
	note := func(t *torch.Tensor, into *[]flow) {
		if t == nil {
			*into = append(*into, flow{})
			return
		}
		id, bytes := t.Storage()
		b := blocks[id]
		if b == nil {
			b = &block{creator: m.at, saver: nobody, bytes: bytes}
			m.found.blocks = append(m.found.blocks, b)
		}
		add(t, b)
		was := live()
		*into = append(*into, m.flow(t, *into, b))
		if t.RequiresGrad() {
			c.Sum(t) // keeps the graph alive, and not t
		}
		around += live() - was
	}
	for _, y := range ys {
		note(y, &out.tensors)
	}
	for _, s := range stashed {
		note(s, &out.skips)
	}

	saved := live() - before - around
	for _, id := range order {
		was := live()
		_, bytes := handles[id][0].Storage()
		for _, t := range handles[id] {
			t.Free()
		}
		if live() == was {
			blocks[id].saver = m.at
		}
		saved -= bytes
	}
	if m.Device.Kind == torch.KindCPU { // else nothing was counted
		m.found.saved[m.at] = saved
	}
}
