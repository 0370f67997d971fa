package profile

import (
	"slices"

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

// assemble makes the chain of a stage from its figures; first says that only that of the first micro-batch is wanted.
func assemble(st *staged, split, first bool) Chain {
	f := st.flows
	out := Chain{Units: st.units, Given: st.given, Gives: st.gives, SkipsIn: st.skipsIn, SkipsOut: st.skipsOut}
	for out.Prologue < len(st.all) && st.all[out.Prologue].passes {
		out.Prologue++
	}
	skip := out.Prologue
	for i, u := range st.all[:skip] {
		out.ProloguePeak = max(out.ProloguePeak, f.at(i)+most(u.keep))
		out.PrologueTimes = append(out.PrologueTimes, u.times[forwardNoGrad].micros())
	}
	var deferred []remat.Deferred
	for i, u := range st.all {
		out.Statistics += u.statistics
		out.UnitTimes = append(out.UnitTimes, remat.UnitTimes{Name: u.name, Forward: u.times[forward].micros(),
			ForwardNoGrad: u.times[forwardNoGrad].micros(), Backward: u.times[firstBackward].micros(), Later: u.times[laterBackward].micros()})
		if i < skip {
			continue
		}
		out.Spread = append(out.Spread, u.times.spread())
		if split {
			share, longer := u.times.parts()
			if u.times[firstPart] == nil { // the times are those of an earlier profile without parts
				share = u.share
			}
			deferred = append(deferred, u.leaves.ofLayer(share, longer))
		}
	}
	out.Footprint = st.footprint()
	out.Chain = out.Footprint.Chain(out.UnitTimes, 0, skip, remat.Makes)
	out.Chain.Deferred = deferred
	if first {
		out.Footprint = nil
		return out
	}
	out.Later = out.Footprint.Chain(out.UnitTimes, 0, skip, remat.Adds)
	out.Later.Deferred = deferred
	return out
}

func most(list [runs]reading) (bytes int64) {
	for _, r := range list {
		bytes = max(bytes, r.peak)
	}
	return bytes
}

// footprint is what the stage takes, block by block.
func (st *staged) footprint() *remat.Footprint {
	n := len(st.all)
	inputs := number(st.flows.storages, st.flows.states)
	out := &remat.Footprint{Inputs: inputs}
	out.Arrives = parcel(inputs.At[0], elements{tuple: st.flows.tuple[0], skips: ones(len(st.s.Crossing(0)))})
	out.Leaves = parcel(inputs.At[n], elements{tuple: st.flows.tuple[n], skips: ones(len(st.beyond))})
	for i, u := range st.all {
		bytes := remat.UnitBytes{Statistics: u.statistics, Saved: u.save[remat.Again].delta - made(st.flows.storages, i+1)}
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
			one := remat.UnitBackward{Peak: r.first.peak, Held: r.held, Weights: r.made}
			if kind >= int(remat.MakesLater) {
				one.LeftPeak, one.LeftWeights, one.Left = r.second.peak, r.madeThen, u.leaves.own
				one.LeftInputs = append(picked(inputs.At[i], u.leaves.inputs), picked(inputs.At[i+1], u.leaves.outputs)...)
				one.LeftGradients = append(picked(b.Gradients.At[i+1], u.leaves.given), picked(b.Gradients.At[i], u.leaves.going)...)
			}
			b.Units = append(b.Units, one)
		}
	}
	return out
}

// number numbers the blocks of memory at boundaries.
func number(storages []*storage, states [][]*storage) (out remat.Blocks) {
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
func parcel(at []int, n elements) (out remat.Parcel) {
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
