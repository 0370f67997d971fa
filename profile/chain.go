package profile

import (
	"slices"

	"penstock.example/internal/segment"
	"penstock.example/remat"
	"penstock.example/torch"
)

// Chain is a model, or a stage of one, as package plan knows it. Each layer of the chain is a unit of
// one or more layers of the model.
type Chain struct {
	remat.Chain // backward makes the gradients of parameters

	Footprint *remat.Footprint  // the bytes of the units
	UnitTimes []remat.UnitTimes // by unit

	Fewer *Chain // for micro-batches with fewer rows (Config.Fewer), with the same times
	// Units is the number of layers in each unit. With Config.LossUnit the last unit of the last chain
	// is nn.LossLayer. The first Prologue units are not layers of the chain. They have no backward, as
	// nothing in them is trained and their input needs no gradient.
	Units        []int
	Prologue     int
	ProloguePeak int64  // bytes, without the stage's input
	Given, Gives int64  // bytes of the stage's input and of its output, without skips
	Timing       Timing // of all operations
}

// chains measures the bytes of each stage's units. Units and times are derived from the layers. If
// kept inputs exceed a limit, all bytes are measured once more without them.
func (p *prober) chains(f *looked, sample []*torch.Tensor) ([]Chain, error) {
	chains, err := p.sweepChains(f, sample)
	if p.isFull(err) && !p.isLean {
		p.isLean = true
		return p.sweepChains(f, sample)
	}
	return chains, err
}

func (p *prober) sweepChains(f *looked, sample []*torch.Tensor) (chains []Chain, err error) {
	units := p.cut(f)
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
		loss = w.loss(f.times)
		units[last] = units[last][:len(units[last])-1]
	}
	for i, st := range w.stages {
		chain := Chain{Units: units[i], Footprint: w.footprint(st)}
		if i == last && loss != nil {
			chain.Footprint.AtOnce, chain.Footprint.LossTmp, chain.Loss = true, loss.Tmp, *loss
		}
		w.assemble(&chain, st, f)
		chains = append(chains, chain)
	}
	return chains, nil
}

// loss removes the loss, which is the last unit, from the units. It returns its costs with forward
// and backward at once.
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

// assemble derives a stage's chain from its footprint and the layers' times.
func (w *sweep) assemble(out *Chain, st *stage, f *looked) {
	fp := out.Footprint
	out.Given, out.Gives = st.values.bytesOf(fp.Arrives.Tuple), st.values.bytesOf(fp.Leaves.Tuple)
	var deferred []remat.Deferred
	var all []timed
	at := 0
	for _, u := range w.units[:st.first] {
		at += len(u.list)
	}
	for i, u := range w.units[st.first:st.last] {
		times := make([]unitTimes, len(u.list))
		if f.times != nil {
			times = f.times[at : at+len(u.list)]
		}
		at += len(u.list)
		for op := range operations {
			all = append(all, timesOf(times, op)...)
		}
		out.UnitTimes = append(out.UnitTimes, remat.UnitTimes{Name: u.name, Forward: micros(times, forward),
			ForwardNoGrad: micros(times, forwardNoGrad),
			Backward:      micros(times, firstBackward), Later: micros(times, laterBackward)})
		if u.isFrozen && out.Prologue == i {
			keep := fp.Units[i].Keep
			out.Prologue = i + 1
			out.ProloguePeak = max(out.ProloguePeak, st.values.fresh(i, 0)+slices.Max(keep[:]))
			continue
		}
		d := remat.Deferred{Bytes: u.backs[remat.AddsLater].Left}
		second := micros(times, secondPart)
		if both := micros(times, firstPart) + second; both > 0 {
			d.Share, d.Longer = second/both, max(both-micros(times, laterBackward), 0)
		}
		deferred = append(deferred, d)
	}
	out.Chain = fp.Chain(out.UnitTimes, out.Chain.Loss.Backward, out.Prologue, remat.Makes)
	if out.Timing = (Timing{spread(all...), f.devices}); w.Split {
		out.Deferred = deferred
	}
}

func (w *sweep) footprint(st *stage) *remat.Footprint {
	n := st.last - st.first
	begin, end := w.elements(st, st.first), w.elements(st, st.last)
	ones := func(list []int) []int { return slices.Repeat([]int{1}, len(list)) }
	out := &remat.Footprint{Inputs: st.values.Blocks,
		Released: st.released,
		Arrives:  begin.parcel(st.values.At[0], ones(begin.pops)),
		Leaves:   end.parcel(st.values.At[n], ones(end.pops))}
	for i, u := range w.units[st.first:st.last] {
		u.bytes.Saved = u.saved - st.values.fresh(i+1, i)
		out.Units = append(out.Units, u.bytes)
		out.Commit += u.commit
	}
	for _, kind := range kinds {
		g := st.grads[kind].Blocks
		measured := []remat.BackwardKind{kind}
		if w.Split {
			measured = append(measured, kind+remat.MakesLater)
		}
		for _, kind := range measured {
			b := remat.BackwardBytes{Gradients: g, Arrives: end.parcel(g.At[n], end.pops),
				Leaves: begin.parcel(g.At[0], begin.pops)}
			for _, u := range w.units[st.first:st.last] {
				b.Units = append(b.Units, u.backs[kind])
			}
			out.Backward[kind] = b
		}
	}
	return out
}

// mostUnits is the most units that a model is cut into.
const mostUnits = 400

// cut returns the numbers of layers in the units of each stage.
func (p *prober) cut(f *looked) (units [][]int) {
	joined := f.joined(p.layers[:p.model])
	coarsen(joined, max(mostUnits-len(p.Balance), 1))
	first := 0
	for _, n := range p.Balance {
		var counts []int
		for i := first; i < first+n; i++ {
			if i == first || !joined[i] {
				counts = append(counts, 0)
			}
			counts[len(counts)-1]++
		}
		units, first = append(units, counts), first+n
	}
	return units
}

// segment cuts the first layers into units.
func (p *prober) segment(units []int) (*segment.Segment, error) {
	return segment.New(segment.Config{Layers: p.layers, Routes: p.routes, Last: sum(units),
		Units: units, InputGrad: p.InputGrad, Overwrite: p.overwrite})
}
