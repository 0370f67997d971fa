package profile

import (
	"slices"

	"penstock.example/remat"
	"penstock.example/segment"
	"penstock.example/torch"
)

// Chain is a model, or a stage of one, as package plan knows it: each layer of the chain is a unit
// of one or more layers of the model.
type Chain struct {
	remat.Chain             // of the first micro-batch of a step, whose backward makes the gradients of parameters
	Later       remat.Chain // of a later one, whose backward adds to them; these and Footprint not with Config.FirstOnly

	// Footprint is what the stage takes, block by block, and UnitTimes the times, by unit.
	Footprint *remat.Footprint
	UnitTimes []remat.UnitTimes

	// Fewer is the chain of micro-batches of fewer rows, with Config.Fewer. Its times are those of the
	// others.
	Fewer *Chain
	// Statistics is the bytes that first forwards gather for the batch norms of a mini-batch
	// (DeferredBatchNorm). They are held to its end.
	Statistics int64
	// Units is the number of layers in each unit, for segment.Config; with Config.LossUnit the last
	// unit of the last chain is the layer nn.LossLayer. The first Prologue of them have no
	// backward: nothing in them is trained and nobody wants a gradient of what they are given. They
	// are run once, and are not layers of the chain.
	Units    []int
	Prologue int
	// PrologueTimes is the microseconds that each of them takes, without gradients.
	PrologueTimes []float64
	// ProloguePeak is the most bytes, beside the stage's input, while the prologue runs.
	ProloguePeak int64
	// Given is the bytes of the stage's input, Gives of its output.
	Given, Gives int64
	// SkipsIn is the bytes of the skips that earlier stages send to the stage, SkipsOut of those
	// that it sends to later ones.
	SkipsIn, SkipsOut int64
	Merged            []Merge
	Spread            []Spread // by layer of the chain
	Timing            Timing   // of all of them
}

// Merge is a layer that is in one unit with the one before it, and why.
type Merge struct{ Layer, Reason string }

// chains makes the chain of each stage. Units and their times are derived from the sweep. The bytes
// of units are measured, by the operations of a plan, for two reasons. A unit of several layers
// takes less than its layers one by one: its backward frees what later layers have saved while
// earlier ones run, and how much of that is free at the peak depends on the order inside of each
// layer. And where stages begin, units and whether their gradients are wanted are known only with
// the balance.
//
// Where a limit has no room for inputs of units that are
// held, all is measured once more without them.
func (p *prober) chains(s *sweep, sample []*torch.Tensor, forwards, backwards float64) (chains []Chain, err error) {
	chains, err = p.chainsOf(s, sample, forwards, backwards)
	if p.isFull(err) && !p.isLean {
		p.drop()
		p.isLean = true
		chains, err = p.chainsOf(s, sample, forwards, backwards)
	}
	return chains, err
}

func (p *prober) chainsOf(s *sweep, sample []*torch.Tensor, forwards, backwards float64) (chains []Chain, err error) {
	units, merged := p.cut(&s.found)
	in, err := p.sampleInput(sample)
	if p.xs = in.xs; err != nil {
		return nil, err
	}
	var stages []*staged
	defer func() {
		for _, st := range stages {
			st.free()
		}
	}()
	p.begin(forwards)
	first := 0
	for stage, n := range p.Balance {
		if stage == len(p.Balance)-1 && p.Loss != nil && p.LossUnit {
			units[stage], n = append(units[stage], 1), n+1
		}
		st, err := p.stage(stage, first, first+n, units[stage])
		if err != nil {
			return nil, err
		}
		stages = append(stages, st)
		if err := p.forwards(st); err != nil {
			return nil, err
		}
		first += n
	}
	if p.Loss != nil && !p.LossUnit {
		if err := p.lossOp(s.times); err != nil {
			return nil, err
		}
	}
	torch.FreeAll(p.xs)
	p.xs = nil
	p.begin(backwards)
	for i, st := range slices.Backward(stages) {
		if i < len(stages)-1 && !p.apart(i, i+1) {
			st.next = stages[i+1]
		}
		if err := p.backwards(st); err != nil {
			return nil, err
		}
	}
	for _, st := range stages {
		chain := p.timed(st, s.times)
		chain.Timing.Devices = s.devices
		for i, reason := range merged[st.first:min(st.last, p.model)] {
			if reason != "" {
				chain.Merged = append(chain.Merged, Merge{p.layers[st.first+i].Name, reason})
			}
		}
		chains = append(chains, chain)
	}
	last := &chains[len(chains)-1]
	if last.Chain.Loss = p.loss; p.FirstOnly {
		return chains, nil
	}
	last.Later.Loss = p.loss
	last.Footprint.AtOnce, last.Footprint.LossTmp = p.Loss != nil && !p.LossUnit, p.loss.Tmp
	return chains, nil
}

// timed is the chain of a stage, with the times of its layers if they are known.
func (p *prober) timed(st *staged, times []unitTimes) Chain {
	at := st.first
	var timing []timed
	for i, n := range st.units {
		if times != nil {
			st.all[i].times = together(times[at : at+n])
		}
		timing = append(timing, st.all[i].times[:]...)
		at += n
	}
	chain := assemble(st, p.Split, p.FirstOnly)
	chain.Timing = p.timing(timing)
	return chain
}

// cut finds the units of each stage, as numbers of layers. merged is, by layer, why it is in one
// unit with the one before it; "" if it begins a unit.
func (p *prober) cut(f *found) (units [][]int, merged []string) {
	merged = f.joined(p.layers[:p.model])
	begin := func() {
		first := 0
		for _, n := range p.Balance {
			merged[first] = ""
			first += n
		}
	}
	begin()
	coarsen(merged, p.routes, max(p.MostUnits-len(p.Balance), 1))
	begin()
	first := 0
	for _, n := range p.Balance {
		var counts []int
		for _, reason := range merged[first : first+n] {
			if reason == "" {
				counts = append(counts, 0)
			}
			counts[len(counts)-1]++
		}
		units, first = append(units, counts), first+n
	}
	return units, merged
}

// segment cuts a part of the model.
func (p *prober) segment(first, last int, units []int) (*segment.Segment, error) {
	return segment.New(segment.Config{Layers: p.layers, Routes: p.routes, First: first, Last: last, Units: units, InputGrad: p.inputGrad, Overwrite: p.overwrite})
}
