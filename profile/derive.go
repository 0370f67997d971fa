package profile

import (
	"slices"

	"penstock.example/internal/segment"
	"penstock.example/nn"
	"penstock.example/plan"
)

// setLayers derives the layers for package plan. A saved output counts for the layer that saves it
// first, not for its creator: a stage frees a sent output. A saved skip counts for its creator.
func (p *Profile) setLayers(layers []nn.NamedLayer) {
	f := p.measured
	p.Timing = f.timing
	for _, x := range f.at[0] {
		p.Input += x.bytes
	}
	if f.copied > 0 {
		p.SecondsPerByte = f.micros / 1e6 / float64(f.copied) // large transfers count most
	}
	moved := int64(0) // bytes that count for the next layer
	for i, named := range layers {
		out := f.tuple(i + 1)
		l := plan.Layer{Name: named.Name, Saved: f.savedBytes(i) + moved}
		for _, o := range out {
			l.Output += o.bytes
			if o.grad {
				l.Gradient += o.bytes
			}
		}
		for _, in := range f.tuple(i) {
			if in.block.saver >= i && (i > 0 || overwrites(named)) {
				l.Enter += in.bytes
			}
		}
		l.Enter = max(l.Enter-moved, 0)
		if moved = min(f.savedLater(i), l.Saved); i == len(layers)-1 { // the model's output stays
			moved = -unsavedBytes(out)
		}
		l.Saved -= moved
		// a later micro-batch's backward adds to gradients
		l.Forward, l.Backward = f.times[i][forward].micros()/1e6, f.times[i][laterBackward].micros()/1e6
		p.Layers = append(p.Layers, l)
		for place, c := range f.skips[i] {
			if c.Stash == i {
				p.Skips = append(p.Skips, f.at[i+1][len(out)+place].skip(c))
			}
		}
	}
	p.parameters(layers)
}

// skip is a stashed element that later layers pop.
func (e element) skip(c segment.Crossing) plan.LayerSkip {
	s := plan.LayerSkip{From: c.Stash, To: slices.Compact(slices.Clone(c.Pops)), Bytes: e.bytes,
		Leave: e.block.unsaved()}
	if e.grad {
		s.Gradient = e.bytes
	}
	if e.block != nil && e.block.saver >= s.To[0] {
		s.Enter = e.bytes
	}
	return s
}

// savedLater returns the bytes of a layer's output that only later layers save.
func (f *layerMeasurement) savedLater(layer int) (bytes int64) {
	out := f.tuple(layer + 1)
	for k, e := range out {
		same := func(o element) bool { return o.block == e.block }
		others := slices.Concat(out[:k], f.at[layer+1][len(out):])
		b := e.block
		if b.creator != nobody && b.saver != nobody && b.first > layer && !slices.ContainsFunc(others, same) {
			bytes += b.bytes
		}
	}
	return bytes
}

// overwrites reports whether a layer declares that it overwrites its input. It gets a copy if it
// begins a stage.
func overwrites(l nn.NamedLayer) bool {
	f, ok := l.Layer.(nn.InPlace)
	return ok && f.OverwritesInput()
}

// unsaved returns the bytes that are held only because the block leaves a stage.
func (b *block) unsaved() int64 {
	if b == nil || b.saver != nobody || b.creator == nobody {
		return 0
	}
	return b.bytes
}

// parameters counts the bytes of parameters, by shape. A shared parameter counts for its first
// layer; later layers that use it have a tie.
func (p *Profile) parameters(layers []nn.NamedLayer) {
	first, ties := map[*nn.Param]int{}, map[*nn.Param]int{}
	for i, l := range layers {
		for _, s := range l.State() {
			owner, layer, bytes := s.Owner(), &p.Layers[i], s.Owner().Bytes()
			trained := int64(0)
			if s.Trainable() {
				trained = bytes
			}
			if from, known := first[owner]; known {
				if _, tied := ties[owner]; !tied {
					ties[owner] = len(p.Ties)
					p.Ties = append(p.Ties, plan.LayerTie{From: from, Bytes: bytes, Gradient: trained})
				}
				tie := &p.Ties[ties[owner]]
				tie.To = append(tie.To, i)
				continue
			}
			if first[owner] = i; s.IsBuffer() {
				layer.Buffers += bytes
			} else {
				layer.Parameters, layer.Trainable = layer.Parameters+bytes, layer.Trainable+trained
			}
		}
	}
}
