package profile

import (
	"slices"

	"penstock.example/planner"
	"penstock.example/remat"
)

// at is the bytes at a boundary that did not come with the stage's input.
func (f *flows) at(boundary int) (bytes int64) {
	for _, l := range f.storages {
		if l.first > 0 && l.first <= boundary && boundary <= l.last {
			bytes += l.bytes
		}
	}
	return bytes
}

// beyond is how far a peak is above the bytes that are made, or below them.
func beyond(peak, made int64) (tmp, early int64) {
	return max(peak-made, 0), max(made-peak, 0)
}

// assemble makes the chain of a stage from its figures; first says that only that of the first micro-batch is wanted.
func assemble(st *staged, split, first bool) Chain {
	f := st.flows
	out := Chain{Units: st.units, Given: st.given, Gives: st.gives, SkipsIn: st.skipsIn, SkipsOut: st.skipsOut}
	for out.Prologue < len(st.all) && st.all[out.Prologue].passes {
		out.Prologue++
	}
	skip := out.Prologue
	made := make([]int64, len(st.all)+1)
	for _, l := range f.storages {
		made[l.first] += l.bytes
		if l.first < skip && l.last >= skip {
			made[skip] += l.bytes // held when the prologue has run
		}
	}
	for i, u := range st.all[:skip] {
		out.ProloguePeak = max(out.ProloguePeak, f.at(i)+most(u.keep))
		out.PrologueTimes = append(out.PrologueTimes, u.times[forwardNoGrad].micros())
	}
	for _, u := range st.all {
		out.Statistics += u.statistics
	}
	var c remat.Chain
	c.Input = made[skip]
	for i, u := range st.all[skip:] {
		boundary := skip + i + 1
		c.Layers = append(c.Layers, remat.Layer{
			Name: u.name, ForwardNoGrad: u.times[forwardNoGrad].micros(), Forward: u.times[forward].micros(), Backward: u.times[firstBackward].micros(),
			Output: made[boundary], Saved: u.save[planner.Again].delta, ForwardTmp: most(u.save) - u.save[planner.Again].delta,
			ForwardNoGradTmp: most(u.keep) - made[boundary],
		})
		out.Spread = append(out.Spread, u.times.spread())
		if split {
			share, longer := u.times.parts()
			if u.times[firstPart] == nil { // the times are those of an earlier profile without parts
				share = u.share
			}
			c.Deferred = append(c.Deferred, u.leaves.ofLayer(share, longer))
		}
	}
	for _, l := range f.storages {
		if from, to := max(l.first, skip), l.last; to > from && l.bytes > 0 {
			c.Carries = append(c.Carries, remat.Carry{From: from - skip - 1, To: to - skip, Bytes: l.bytes})
		}
	}
	out.Chain = st.chain(c, skip, planner.Makes)
	if first {
		return out
	}
	out.Later = st.chain(c, skip, planner.Adds)
	if split {
		out.Split, out.SplitLater = st.chain(c, skip, planner.MakesLater), st.chain(c, skip, planner.AddsLater)
	}
	out.Footprint = st.footprint()
	return out
}

// chain is a chain with the backwards of one kind.
func (st *staged) chain(c remat.Chain, skip int, kind planner.BackwardKind) remat.Chain {
	storages := st.flows.back[kind].storages
	c.Layers = slices.Clone(c.Layers)
	c.InputGradient = made(storages, skip)
	for i := range c.Layers {
		l, u := &c.Layers[i], &st.all[skip+i]
		l.Gradient, l.WeightGradient = made(storages, skip+i+1), u.backs[kind].made
		switch kind {
		case planner.Makes:
			l.BackwardLater = u.times[laterBackward].micros()
		case planner.Adds, planner.AddsLater:
			l.Backward, l.WeightGradient = u.times[laterBackward].micros(), 0
		}
		l.BackwardTmp, l.BackwardEarly = beyond(u.backs[kind].first.peak, made(storages, skip+i)+l.WeightGradient)
	}
	for _, l := range storages {
		if to, last := l.first, max(l.last, skip); to > last && l.bytes > 0 {
			c.GradientCarries = append(c.GradientCarries, remat.Carry{From: last - skip - 1, To: to - skip, Bytes: l.bytes})
		}
	}
	return c
}

func most(list [runs]reading) (bytes int64) {
	for _, r := range list {
		bytes = max(bytes, r.peak)
	}
	return bytes
}

// footprint is what the stage takes, block by block.
func (st *staged) footprint() *planner.Footprint {
	n := len(st.all)
	inputs := number(st.flows.storages, st.flows.states)
	out := &planner.Footprint{Inputs: inputs}
	out.Arrives = parcel(inputs.At[0], elements{tuple: st.flows.tuple[0], skips: ones(len(st.s.Crossing(0)))})
	out.Leaves = parcel(inputs.At[n], elements{tuple: st.flows.tuple[n], skips: ones(len(st.beyond))})
	for i, u := range st.all {
		bytes := planner.UnitBytes{Statistics: u.statistics, Saved: u.save[planner.Again].delta - made(st.flows.storages, i+1)}
		for run := range runs {
			bytes.Keep[run], bytes.Save[run] = u.keep[run].peak, u.save[run].peak
		}
		out.Units = append(out.Units, bytes)
		out.Commit += u.commit
	}
	for kind := range out.Backward {
		f := &st.flows.back[kind]
		if len(f.states[0])+len(f.states[n]) == 0 && f.storages == nil {
			continue // not measured
		}
		b := &out.Backward[kind]
		b.Gradients = number(f.storages, f.states)
		b.Arrives = parcel(b.Gradients.At[n], st.elements(n, st.flows.tuple[n]))
		b.Leaves = parcel(b.Gradients.At[0], st.elements(0, st.flows.tuple[0]))
		for i, u := range st.all {
			r := u.backs[kind]
			one := planner.UnitBackward{Peak: r.first.peak, Deferred: r.deferred, Held: r.held, Next: r.next, Weights: r.made}
			if kind >= int(planner.MakesLater) {
				one.LeftPeak, one.LeftHeld, one.LeftWeights, one.Left = r.second.peak, r.heldThen, r.madeThen, u.leaves.own
				one.LeftInputs = append(picked(inputs.At[i], u.leaves.inputs), picked(inputs.At[i+1], u.leaves.outputs)...)
				one.LeftGradients = append(picked(b.Gradients.At[i+1], u.leaves.given), picked(b.Gradients.At[i], u.leaves.going)...)
			}
			b.Units = append(b.Units, one)
		}
	}
	return out
}

// number numbers the blocks of memory at boundaries.
func number(storages []*storage, states [][]*storage) (out planner.Blocks) {
	index := map[*storage]int{}
	for i, s := range storages {
		index[s] = i
		out.Bytes = append(out.Bytes, s.bytes)
	}
	for _, list := range states {
		at := make([]int, len(list))
		for k, s := range list {
			if at[k] = -1; s != nil {
				at[k] = index[s]
			}
		}
		out.At = append(out.At, at)
	}
	return out
}

func ones(n int) []int { return slices.Repeat([]int{1}, n) }

// parcel is the elements of a boundary as they are sent.
func parcel(at []int, n elements) (out planner.Parcel) {
	if len(at) == 0 {
		return out
	}
	out.Tuple = at[:n.tuple]
	for place, pops := range n.skips {
		from := n.skip(place, 0)
		out.Skips = append(out.Skips, at[from:from+pops])
	}
	out.Ties = at[n.count()-len(n.ties):]
	return out
}

// picked is the blocks of some elements.
func picked(at, elements []int) (blocks []int) {
	for _, k := range elements {
		if at[k] >= 0 && !slices.Contains(blocks, at[k]) {
			blocks = append(blocks, at[k])
		}
	}
	return blocks
}
