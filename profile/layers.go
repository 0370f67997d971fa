package profile

import (
	"slices"

	"penstock.example/internal/engine"
	"penstock.example/internal/segment"
	"penstock.example/remat"
	"penstock.example/torch"
)

// layerMeasurement is the measurement of single layers, which does not depend on the cut.
type layerMeasurement struct {
	key       string               // see settingsKey
	at        [][]element          // by boundary: the tuple, and then skips by place
	tuples    []int                // by boundary: elements of the tuple
	skips     [][]segment.Crossing // by layer: at the boundary after it
	saved     []int64              // by layer: bytes that it saves, without its input and its output
	held      []int64              // by layer, the loss too: bytes that a forward with gradients leaves
	overwrote []bool               // by layer, the loss too: it overwrote its input
	blocks    []*block             // of outputs
	copied    int64                // bytes of the timed transfers
	micros    float64              // of the timed transfers
	times     []layerTimes         // by layer, the loss too; zero with Config.BytesOnly
	timing    Timing
}

// element is a tensor that goes from layer to layer; the zero value is an absent skip.
type element struct {
	grad  bool  // its gradient goes back
	bytes int64 // of a transfer; 0 for a repeated element of a tuple
	block *block
}

// block is the memory of a layer's output. A view or in-place output shares its input's block.
type block struct {
	creator int // the layer that allocated it, or nobody
	saver   int // the last layer that saves it for backward, or nobody
	first   int // the first layer that saves it, if any
	bytes   int64
}

// nobody is the saver of blocks that no layer saves, and the creator of the model's input and of
// parameters, which are held anyway.
const nobody = -1

// measureLayers measures every layer as a unit of its own.
func (p *prober) measureLayers(key string, sample []*torch.Tensor) *layerMeasurement {
	f := &layerMeasurement{key: key, times: make([]layerTimes, len(p.layers))}
	p.overwrite = true
	defer func() { p.overwrite = false }()
	w := p.newSweep([][]int{slices.Repeat([]int{1}, len(p.layers))}, sample)
	defer w.free()
	w.replace(w.in.xs)
	given := &block{creator: nobody, saver: nobody} // held by the first stage of a pipe, in any case
	f.note(w.in, w.in, func(*torch.Tensor) *block { return given })
	for i := range w.units {
		f.skips = append(f.skips, w.s.Crossing(i+1))
		if p.BytesOnly {
			p.tell(float64(i) / float64(p.model))
		}
		w.run(i, func() { w.measureLayer(f, i) })
	}
	if p.overwrote = f.overwrote; !p.BytesOnly {
		f.times, f.timing = p.passes(sample, f.held)
	}
	return f
}

// note adds the elements of a boundary. copies are the elements as transferred.
func (f *layerMeasurement) note(values, copies input, blockOf func(t *torch.Tensor) *block) {
	var list []element
	sent := slices.Concat(copies.xs, copies.skips)
	for k, t := range slices.Concat(values.xs, values.skips) {
		var e element
		if t != nil {
			e = element{grad: t.RequiresGrad(), block: blockOf(t)}
			if k >= len(copies.xs) || !slices.Contains(sent[:k], sent[k]) {
				_, e.bytes = sent[k].Storage()
			}
		}
		list = append(list, e)
	}
	f.at, f.tuples = append(f.at, list), append(f.tuples, len(values.xs))
}

// measureLayer runs layer i once with gradients. Copies of its output are the next input, as in
// transfers between stages. It frees the handles on each block of input and output: a block that
// then stays live is saved by the layer's graph.
func (w *sweep) measureLayer(f *layerMeasurement, i int) {
	blocks, handles := map[uintptr]*block{}, map[uintptr][]*torch.Tensor{}
	for _, s := range state(w.units[i].list) {
		id, _ := s.Tensor().Storage()
		blocks[id] = &block{creator: nobody, saver: nobody} // a layer may return its parameter
	}
	inputs := slices.Concat(w.in.xs, w.in.skips)
	for k, t := range inputs {
		if t != nil {
			id, _ := t.Storage()
			blocks[id], handles[id] = f.at[i][k].block, append(handles[id], t)
		}
	}
	overwritten := engine.Watch(inputs)
	e := w.execute(i, w.in.mapped(w.handle), true)
	held := w.do(e, remat.Op{Kind: remat.ForwardSave, Layer: i}).delta
	f.held, f.overwrote = append(f.held, held), append(f.overwrote, overwritten() >= 0)
	if i == w.model {
		return // nothing follows the loss
	}
	var out input
	w.undo = append(w.undo, func() { out.free() })
	out.xs, out.skips = e.TakeSaved(i)
	for _, boundary := range []int{i, i + 1} {
		xs, skips := e.Take(boundary)
		for place, t := range skips {
			if boundary > i && out.skips[place] == nil { // of an earlier layer
				out.skips[place], skips[place] = t, nil
			}
		}
		torch.FreeAll(slices.Concat(xs, skips))
	}
	w.c.SetGrad(true)
	for _, t := range slices.Concat(out.xs, out.skips) {
		if t == nil {
			continue
		}
		id, bytes := t.Storage()
		if blocks[id] == nil {
			blocks[id] = &block{creator: i, saver: nobody, bytes: bytes}
			f.blocks, held = append(f.blocks, blocks[id]), held-bytes
		}
		handles[id] = append(handles[id], t)
		if t.RequiresGrad() {
			w.c.Sum(t) // keeps the graph, without the tensor's memory
		}
	}
	f.saved = append(f.saved, held)
	w.next.xs = w.copied(out.xs)
	w.next.skips = w.copied(out.skips)
	f.note(out, w.next, func(t *torch.Tensor) *block { id, _ := t.Storage(); return blocks[id] })
	for id, list := range handles {
		was := w.live()
		torch.FreeAll(list)
		if w.live() == was {
			if blocks[id].saver == nobody {
				blocks[id].first = i
			}
			blocks[id].saver = i
		}
	}
	if w.in, w.next = w.next, (input{}); !w.BytesOnly {
		f.transfer(w)
	}
}

// transfer times copies of a sweep's input to the other device.
func (f *layerMeasurement) transfer(w *sweep) {
	for _, t := range w.in.xs {
		var times durations
		for n := (count{Config: &w.Config}); n.more(); {
			if w.time(w.peer, &times, func() { w.peer.CopyHere(t) }); !n.add(times[len(times)-1]) {
				times = nil
			}
		}
		_, bytes := t.Storage()
		f.copied, f.micros = f.copied+bytes, f.micros+times.micros()
	}
}
