package profile

import (
	"slices"

	"penstock.example/remat"
	"penstock.example/torch"
)

// Chain is a model, or a stage of one, as package plan knows it. Each layer of the chain is a unit
// of one or more layers of the model.
type Chain struct {
	remat.Chain // backward makes the gradients of parameters

	Footprint *remat.Footprint  // the bytes of the units
	UnitTimes []remat.UnitTimes // by unit

	Fewer *Chain // for micro-batches with fewer rows (Config.Fewer), with the same times
	// Units is the number of layers in each unit. With Config.LossUnit the last unit of the last
	// chain is nn.LossLayer. The first Prologue units are not layers of the chain. They have no
	// backward, as nothing in them is trained and their input needs no gradient.
	Units        []int
	Prologue     int
	ProloguePeak int64 // bytes, without the stage's input

	InputTuple, OutputTuple int64  // bytes of the stage's input and of its output, without skips
	Timing                  Timing // of all operations
}

// chains measures the bytes of each stage's units. Units and times are derived from the layers.
func (p *prober) chains(f *layerMeasurement, sample []*torch.Tensor) (chains []Chain) {
	units := f.units(p.layers[:p.model], p.Balance)
	last := len(units) - 1
	if p.Loss != nil {
		units[last] = append(units[last], 1)
	}
	w := p.newSweep(units, sample)
	defer w.free()
	p.begin(1.0 / 3)
	w.forwards()
	p.begin(1)
	w.backwards()
	for i, st := range w.stages {
		chain, loss := Chain{Units: units[i], Timing: f.timing}, 0.0
		atOnce, tmp := i == last && p.Loss != nil && !p.LossUnit, int64(0)
		if atOnce {
			chain.Units = units[i][:len(units[i])-1]
			tmp = w.dropLoss(st)
			loss = micros(f.times[p.model:], forward) + micros(f.times[p.model:], firstBackward)
		}
		chain.Footprint = w.footprint(st)
		chain.Footprint.AtOnce, chain.Footprint.LossTmp = atOnce, tmp
		w.assemble(&chain, st, f.times, loss)
		chains = append(chains, chain)
	}
	return chains
}

// dropLoss removes the loss, which is the last unit. It returns the temporary bytes of the loss's
// forward and backward as one operation.
func (w *sweep) dropLoss(st *stage) int64 {
	st.last--
	u, at, grads := &w.units[st.last], st.last-st.first, &st.grads[remat.Makes]
	peak := max(slices.Max(u.bytes.Save[:]),
		u.saved+grads.bytesOf(grads.At[at+1])+u.backs[remat.Makes].Peak) - grads.fresh(at, at+1)
	for _, b := range []*blocks{&st.values, &st.grads[0], &st.grads[1]} {
		b.At = b.At[:at+1]
	}
	return peak
}

// assemble derives a stage's chain from its footprint and the layers' times. loss is microseconds.
func (w *sweep) assemble(out *Chain, st *stage, layers []layerTimes, loss float64) {
	fp := out.Footprint
	out.InputTuple, out.OutputTuple = st.values.bytesOf(fp.Arrives.Tuple), st.values.bytesOf(fp.Leaves.Tuple)
	var deferred []remat.Deferred
	for i, u := range w.units[st.first:st.last] {
		times := layers[u.layer : u.layer+len(u.list)]
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
	if out.Chain = fp.Chain(out.UnitTimes, loss, out.Prologue, remat.Makes); w.Split {
		out.Deferred = deferred
	}
}

func (w *sweep) footprint(st *stage) *remat.Footprint {
	n, units := st.last-st.first, w.units[st.first:st.last]
	begin, end := w.elements(st, st.first), w.elements(st, st.last)
	out := &remat.Footprint{Inputs: st.values.Blocks, Arrives: begin.parcel(st.values.At[0], false),
		Leaves: end.parcel(st.values.At[n], false), Released: st.released}
	for i, u := range units {
		u.bytes.Saved = u.saved - st.values.fresh(i+1, i)
		out.Units = append(out.Units, u.bytes)
		out.Commit += u.commit
	}
	for kind := range out.Backward {
		if remat.BackwardKind(kind) >= remat.MakesLater && !w.Split {
			break
		}
		g := st.grads[kind%len(kinds)].Blocks
		out.Backward[kind] = remat.BackwardBytes{Gradients: g, Arrives: end.parcel(g.At[n], true),
			Leaves: begin.parcel(g.At[0], true)}
		for _, u := range units {
			out.Backward[kind].Units = append(out.Backward[kind].Units, u.backs[kind])
		}
	}
	return out
}
