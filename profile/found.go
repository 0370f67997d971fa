package profile

import (
	"cmp"
	"slices"

	"penstock.example/balance"
	"penstock.example/nn"
)

// block is the memory of an output of a layer. Outputs of several layers may share one: views, and
// outputs of layers that work in place.
type block struct {
	creator int // the layer that allocated it, or nobody
	saver   int // the last layer that saves it for backward, or nobody
	bytes   int64
}

func newBlock(creator int, bytes int64) *block {
	return &block{creator: creator, saver: nobody, bytes: bytes}
}

// nobody is the saver of blocks that no layer saves, and the creator of the model's input and of
// parameters, which are held anyway.
const nobody = -1

// found is what one run of each layer has shown. The tensors of its flows are freed.
type found struct {
	input  int64
	layers []balance.Layer
	in     [][]flow // by layer, distinct
	out    [][]flow // by layer, distinct
	saved  []int64  // by layer: bytes that it saves beside its input and its output
	blocks []*block
	skips  []foundSkip
	copies copies

	held      []int64 // by layer, the loss too: bytes that a forward with gradients leaves
	overwrote []bool  // by layer, the loss too: it overwrote its input
}

type foundSkip struct {
	balance.Skip
	stashed flow
}

// layer adds a layer: the bytes that it saves beside input and output, its input and its output.
func (f *found) layer(l nn.NamedLayer, saved int64, in, out []flow) {
	layer := balance.Layer{Name: l.Name}
	in, out = distinct(in), distinct(out)
	for _, o := range out {
		layer.Output += o.bytes
		if o.grad {
			layer.Gradient += o.bytes
		}
	}
	f.layers, f.saved, f.in, f.out = append(f.layers, layer), append(f.saved, saved), append(f.in, in), append(f.out, out)
}

// skip adds a skip.
func (f *found) skip(r nn.SkipRoute, stashed flow) {
	s := foundSkip{balance.Skip{From: r.Stash, Bytes: stashed.bytes}, stashed}
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

// view derives the layers for package balance. A block counts for the layer that allocated it,
// whichever layer saves it.
func (p *Profile) view(layers []nn.NamedLayer, config *Config) {
	f := &p.looked.found
	p.Layers, p.Input, p.SecondsPerByte = slices.Clone(f.layers), f.input, f.copies.perByte()
	for i := range p.Layers {
		l := &p.Layers[i]
		l.Saved = f.saved[i]
		for _, in := range f.in[i] {
			if in.block.saver >= i && (i > 0 || overwrites(layers[i])) {
				l.Enter += in.bytes
			}
		}
		l.Leave = f.leave(i)
	}
	for _, b := range f.blocks {
		if b.saver != nobody {
			p.Layers[b.creator].Saved += b.bytes
		}
	}
	for _, s := range f.skips {
		b := s.stashed.block
		s.Leave = b.loose()
		if b != nil && b.saver >= s.To[0] {
			s.Enter = s.Bytes
		}
		p.Skips = append(p.Skips, s.Skip)
	}
	slices.SortStableFunc(p.Skips, func(a, b balance.Skip) int {
		return cmp.Or(a.From-b.From, a.To[len(a.To)-1]-b.To[len(b.To)-1])
	})
	p.seconds(config)
	p.parameters(layers)
}

// seconds sets the times of the layers. Backward is that of a later micro-batch, which adds to the
// gradients of the parameters.
func (p *Profile) seconds(config *Config) {
	p.Timing = config.timing(nil)
	if p.looked.times == nil {
		return
	}
	var all []timed
	for i := range p.Layers {
		t := p.looked.times[i]
		p.Layers[i].Forward, p.Layers[i].Backward = t[forward].typical().Seconds(), t[laterBackward].typical().Seconds()
		all = append(all, t[forward], t[laterBackward])
	}
	p.Timing = config.timing(all)
	p.Timing.Devices = p.looked.devices
}

// leave is the bytes that are held only because layer i ends a stage.
func (f *found) leave(i int) (bytes int64) {
	var counted []*block
	for _, out := range f.out[i] {
		if !slices.Contains(counted, out.block) && !f.skipped(out.block, i) {
			bytes += out.block.loose()
			counted = append(counted, out.block)
		}
	}
	return bytes
}

// skipped reports whether a block is also that of a skip across the boundary after a layer. Then it
// counts with the skip.
func (f *found) skipped(b *block, layer int) bool {
	return slices.ContainsFunc(f.skips, func(s foundSkip) bool {
		return s.stashed.block == b && s.From <= layer && layer < s.To[len(s.To)-1]
	})
}

// overwrites reports whether a layer at the begin of a stage gets a copy of the stage's input.
func overwrites(l nn.NamedLayer) bool {
	f, ok := l.Layer.(nn.InPlace)
	return ok && f.OverwritesInput()
}

// loose is the bytes that are held only because the block leaves a stage.
func (b *block) loose() int64 {
	if b == nil || b.saver != nobody || b.creator == nobody {
		return 0
	}
	return b.bytes
}

// parameters counts the bytes of parameters, by shape. A shared parameter counts for its first
// layer; later layers that use it have a tie.
func (p *Profile) parameters(layers []nn.NamedLayer) {
	first, tied := map[*nn.Param]int{}, map[*nn.Param]int{}
	for i, l := range layers {
		for _, s := range l.State() {
			owner := s.Owner()
			if _, known := first[owner]; known {
				continue
			}
			first[owner] = i
			bytes := owner.Bytes()
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
				tie := balance.Tie{From: from, Bytes: owner.Bytes()}
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
