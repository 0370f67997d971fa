package profile

import (
	"slices"

	"penstock/balance"
	"penstock/nn"
)

// found is what has been measured so far. Of flows only what they say is used here; the tensors are gone.
type found struct {
	input  int64
	layers []balance.Layer
	in     [][]flow // by layer, distinct
	out    [][]flow // by layer, distinct
	saved  []int64  // by layer: what it allocates and saves itself
	blocks []*block
	skips  []foundSkip
}

type foundSkip struct {
	balance.Skip
	block *block
}

// layer adds a layer with what it was given and what it gave. Bytes that are held wait for profile.
func (f *found) layer(l nn.NamedLayer, forward, backward float64, in, out []flow) {
	layer := balance.Layer{Name: l.Name, Forward: forward, Backward: backward}
	in, out = distinct(in), distinct(out)
	for _, o := range out {
		layer.Output += o.bytes
		if o.grad {
			layer.Gradient += o.bytes
		}
	}
	f.layers, f.in, f.out = append(f.layers, layer), append(f.in, in), append(f.out, out)
}

// skip adds a skip that all layers have popped.
func (f *found) skip(r nn.SkipRoute, stashed flow) {
	s := foundSkip{balance.Skip{From: r.Stash, Bytes: stashed.bytes}, stashed.block}
	if stashed.grad {
		s.Gradient = stashed.bytes
	}
	for _, p := range r.Pops {
		if p > r.Stash && !slices.Contains(s.To, p) {
			s.To = append(s.To, p)
		}
	}
	f.skips = append(f.skips, s)
}

// profile adds up what is known only at the end: a block belongs to the layer that allocated it, whoever saves it.
func (m *measurement) profile() Profile {
	f := &m.found
	p := Profile{Layers: f.layers, Input: f.input, SecondsPerByte: m.copies.perByte(), Timing: m.timing(m.times)}
	for i := range p.Layers {
		l := &p.Layers[i]
		l.Saved = f.saved[i]
		for _, in := range f.in[i] {
			if in.block.saver >= i && (i > 0 || overwrites(m.layers[i])) {
				l.Enter += in.bytes
			}
		}
		var counted []*block
		for _, out := range f.out[i] {
			if !slices.Contains(counted, out.block) && !f.skipped(out.block, i) {
				l.Leave += out.block.loose()
				counted = append(counted, out.block)
			}
		}
	}
	for _, b := range f.blocks {
		if b.saver != nobody {
			p.Layers[b.creator].Saved += b.bytes
		}
	}
	for _, s := range f.skips {
		s.Leave = s.block.loose()
		if s.block != nil && s.block.saver >= s.To[0] {
			s.Enter = s.Bytes
		}
		p.Skips = append(p.Skips, s.Skip)
	}
	slices.SortStableFunc(p.Skips, func(a, b balance.Skip) int { return a.From - b.From })
	m.parameters(&p)
	return p
}

// skipped says whether a block is also that of a skip past the border behind a layer, whose own it then is to count.
func (f *found) skipped(b *block, layer int) bool {
	return slices.ContainsFunc(f.skips, func(s foundSkip) bool { return s.block == b && s.From <= layer && layer < s.To[len(s.To)-1] })
}

// overwrites says whether a pipe gives the layer a copy of a stage's input.
func overwrites(l nn.NamedLayer) bool {
	f, ok := l.Layer.(nn.InPlace)
	return ok && f.OverwritesInput()
}

// loose is how much is held because the block leaves a stage, and for no other reason.
func (b *block) loose() int64 {
	if b == nil || b.saver != nobody || b.creator == nobody {
		return 0
	}
	return b.bytes
}

// parameters counts bytes by shape. A shared parameter is its first layer's; layers behind that one have a tie.
func (m *measurement) parameters(p *Profile) {
	first, tied := map[*nn.Param]int{}, map[*nn.Param]int{}
	for i, l := range m.layers {
		for _, s := range l.State() {
			owner := s.Owner()
			if _, known := first[owner]; known {
				continue
			}
			first[owner] = i
			bytes := bytesOf(owner)
			switch {
			case s.IsBuffer():
				p.Layers[i].Buffers += bytes
				continue
			case s.Trainable():
				p.Layers[i].Trainable += bytes
			}
			p.Layers[i].Parameters += bytes
		}
		for _, s := range nn.Shared(l.Layer) {
			owner := s.Owner()
			from := first[owner]
			if from == i {
				continue
			}
			if _, known := tied[owner]; !known {
				tied[owner] = len(p.Ties)
				tie := balance.Tie{From: from, Bytes: bytesOf(owner)}
				if s.Trainable() {
					tie.Gradient = tie.Bytes
				}
				p.Ties = append(p.Ties, tie)
			}
			if tie := &p.Ties[tied[owner]]; !slices.Contains(tie.To, i) {
				tie.To = append(tie.To, i)
			}
		}
	}
}

func bytesOf(p *nn.Param) int64 { return p.Numel() * p.DType().Size() }
