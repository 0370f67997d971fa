package profile

import (
	"slices"

	"penstock.example/internal/segment"
	"penstock.example/remat"
	"penstock.example/torch"
)

// Chain is a model, or a stage of one, as package plan knows it: each layer of the chain is a unit
// of one or more layers of the model.
type Chain struct {
	remat.Chain // backward makes the gradients of parameters

	// Footprint has the bytes, UnitTimes the times of the units.
	Footprint *remat.Footprint
	UnitTimes []remat.UnitTimes

	// Fewer is the chain of micro-batches with fewer rows (Config.Fewer). Its times are copies.
	Fewer *Chain
	// Units is the number of layers in each unit. With Config.LossUnit the last unit of the last chain
	// is nn.LossLayer. The first Prologue units have no backward, as nothing in them is trained and the
	// gradient of their input is not wanted. They are not layers of the chain.
	Units    []int
	Prologue int
	// ProloguePeak is the peak of the prologue in bytes, without the stage's input.
	ProloguePeak int64
	// Given is the bytes of the stage's input without skips, Gives of its output.
	Given, Gives int64
	Timing       Timing // of all operations
}

// chains makes the chain of each stage. Units and their times are derived from the layers, their
// bytes are measured. If a limit has no room for kept inputs, all is measured once more without them.
func (p *prober) chains(s *looked, sample []*torch.Tensor) (chains []Chain, err error) {
	chains, err = p.chainsOf(s, sample)
	if p.isFull(err) && !p.isLean {
		p.isLean = true
		chains, err = p.chainsOf(s, sample)
	}
	return chains, err
}

func (p *prober) chainsOf(s *looked, sample []*torch.Tensor) (chains []Chain, err error) {
	units := p.cut(&s.found)
	last := len(units) - 1
	if p.Loss != nil {
		units[last] = append(units[last], 1)
	}
	w, err := p.newSweep(units)
	if err != nil {
		return nil, err
	}
	defer w.free()
	if w.in, err = p.sampleInput(sample); err != nil {
		return nil, err
	}
	p.begin(sweepingForward)
	if err := w.forwards(); err != nil {
		return nil, err
	}
	w.in.free()
	p.begin(sweepingBackward)
	if err := w.backwards(); err != nil {
		return nil, err
	}
	var loss *remat.Loss
	if p.Loss != nil && !p.LossUnit {
		loss = w.loss(s.times)
		units[last] = units[last][:len(units[last])-1]
	}
	for i, st := range w.stages {
		chain := Chain{Units: units[i], Footprint: w.footprint(st)}
		if i == last && loss != nil {
			chain.Footprint.AtOnce, chain.Footprint.LossTmp, chain.Loss = true, loss.Tmp, *loss
		}
		w.assemble(&chain, st, s)
		chains = append(chains, chain)
	}
	return chains, nil
}

// loss makes the loss, which is the last unit, forward and backward at once, and leaves it out of
// the units.
func (w *sweep) loss(times []unitTimes) *remat.Loss {
	st := w.stages[len(w.stages)-1]
	st.last--
	u, at := &w.units[st.last], st.last-st.first
	made := st.grads[remat.Makes]
	seed := made.bytesOf(made.At[at+1])
	out := &remat.Loss{Tmp: max(slices.Max(u.bytes.Save[:]), u.saved+seed+u.backs[remat.Makes].Peak) -
		made.fresh(at, at+1)}
	if times != nil {
		out.Backward = micros(times[w.model:], forward) + micros(times[w.model:], firstBackward)
	}
	for _, b := range []*blocks{&st.values, &st.grads[0], &st.grads[1]} {
		b.At = b.At[:at+1]
	}
	return out
}

// assemble makes the views of a stage's footprint.
func (w *sweep) assemble(out *Chain, st *stage, s *looked) {
	f := out.Footprint
	out.Given, out.Gives = st.values.bytesOf(f.Arrives.Tuple), st.values.bytesOf(f.Leaves.Tuple)
	var deferred []remat.Deferred
	all := []timed(nil)
	at := 0
	for _, u := range w.units[:st.first] {
		at += len(u.list)
	}
	for i, u := range w.units[st.first:st.last] {
		times := make([]unitTimes, len(u.list))
		if s.times != nil {
			times = s.times[at : at+len(u.list)]
		}
		at += len(u.list)
		for op := range operations {
			all = append(all, timesOf(times, op)...)
		}
		out.UnitTimes = append(out.UnitTimes, remat.UnitTimes{Name: u.name, Forward: micros(times, forward),
			ForwardNoGrad: micros(times, forwardNoGrad),
			Backward:      micros(times, firstBackward), Later: micros(times, laterBackward)})
		if u.isFrozen && out.Prologue == i {
			keep := f.Units[i].Keep
			out.Prologue = i + 1
			out.ProloguePeak = max(out.ProloguePeak, st.values.fresh(i, 0)+slices.Max(keep[:]))
			continue
		}
		left := remat.Deferred{Bytes: u.backs[remat.AddsLater].Left}
		second := micros(times, secondPart)
		if both := micros(times, firstPart) + second; both > 0 {
			left.Share, left.Longer = second/both, max(both-micros(times, laterBackward), 0)
		}
		deferred = append(deferred, left)
	}
	out.Chain = f.Chain(out.UnitTimes, out.Chain.Loss.Backward, out.Prologue, remat.Makes)
	if out.Timing = (Timing{spread(all...), s.devices}); w.Split {
		out.Deferred = deferred
	}
}

// footprint returns the bytes of a stage.
func (w *sweep) footprint(st *stage) *remat.Footprint {
	n := st.last - st.first
	begin, end := w.elements(st, st.first), w.elements(st, st.last)
	ones := func(list []int) []int { return slices.Repeat([]int{1}, len(list)) }
	out := &remat.Footprint{Inputs: st.values.Blocks,
		Arrives: begin.parcel(st.values.At[0], ones(begin.pops)),
		Leaves:  end.parcel(st.values.At[n], ones(end.pops))}
	for i, u := range w.units[st.first:st.last] {
		u.bytes.Saved = u.saved - st.values.fresh(i+1, i)
		out.Units = append(out.Units, u.bytes)
		out.Commit += u.commit
	}
	for _, kind := range kinds {
		g := st.grads[kind].Blocks
		b := remat.BackwardBytes{Gradients: g, Arrives: end.parcel(g.At[n], end.pops),
			Leaves: begin.parcel(g.At[0], begin.pops)}
		for later := range remat.BackwardKind(2) {
			if later > 0 && !w.Split {
				continue
			}
			b.Units = nil
			for _, u := range w.units[st.first:st.last] {
				b.Units = append(b.Units, u.backs[kind+later*remat.MakesLater])
			}
			out.Backward[kind+later*remat.MakesLater] = b
		}
	}
	return out
}

// mostUnits is the most units that a model is cut into.
const mostUnits = 400

// cut returns the units of each stage, as numbers of layers.
func (p *prober) cut(f *found) (units [][]int) {
	joined := f.joined(p.layers[:p.model])
	coarsen(joined, max(mostUnits-len(p.Balance), 1))
	first := 0
	for stage, n := range p.Balance {
		units = append(units, nil)
		for i := first; i < first+n; i++ {
			if i == first || !joined[i] {
				units[stage] = append(units[stage], 0)
			}
			units[stage][len(units[stage])-1]++
		}
		first += n
	}
	return units
}

// segment cuts the first layers into units.
func (p *prober) segment(units []int) (*segment.Segment, error) {
	return segment.New(segment.Config{Layers: p.layers, Routes: p.routes, Last: sum(units),
		Units: units, InputGrad: p.InputGrad, Overwrite: p.overwrite})
}
