package profile

import (
	"penstock/remat"
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

// assemble makes a chain from the figures of its units.
func assemble(f *flows, units []figures) Chain {
	out := Chain{}
	for out.Prologue < len(units) && units[out.Prologue].passes {
		out.Prologue++
	}
	skip := out.Prologue
	made := make([]int64, len(units)+1)
	for _, l := range f.storages {
		made[l.first] += l.bytes
		if l.first < skip && l.last >= skip {
			made[skip] += l.bytes // held when the prologue has run
		}
	}
	for i, u := range units[:skip] {
		out.ProloguePeak = max(out.ProloguePeak, f.at(i)+u.keep.peak)
	}
	gradients, gradMade := f.grads()
	var c remat.Chain
	c.Input, c.InputGradient = made[skip], gradMade[skip]
	for i, u := range units[skip:] {
		boundary := skip + i + 1
		l := remat.Layer{
			Name: u.name, ForwardNoGrad: u.times[forwardNoGrad].micros(), Forward: u.times[forward].micros(), Backward: u.times[firstBackward].micros(),
			Output: made[boundary], Saved: u.save.delta, ForwardTmp: u.save.peak - u.save.delta, ForwardNoGradTmp: u.keep.peak - made[boundary],
			Gradient: gradMade[boundary], WeightGradient: u.weights,
		}
		l.BackwardTmp, l.BackwardEarly = beyond(u.back.peak, gradMade[boundary-1]+u.weights)
		c.Layers = append(c.Layers, l)
		out.Spread = append(out.Spread, u.times.spread())
		out.Deferred = append(out.Deferred, u.deferred)
		out.Statistics += u.statistics
	}
	for _, l := range f.storages {
		if from, to := max(l.first, skip), l.last; to > from && l.bytes > 0 {
			c.Carries = append(c.Carries, remat.Carry{From: from - skip - 1, To: to - skip, Bytes: l.bytes})
		}
	}
	for _, l := range gradients {
		if to, last := l.first, max(l.last, skip); to > last && l.bytes > 0 {
			c.GradientCarries = append(c.GradientCarries, remat.Carry{From: last - skip - 1, To: to - skip, Bytes: l.bytes})
		}
	}
	out.Chain, out.Later = c, c
	out.Later.Layers = append([]remat.Layer(nil), c.Layers...)
	for i := range out.Later.Layers {
		l := &out.Later.Layers[i]
		l.WeightGradient, l.Backward = 0, units[skip+i].times[laterBackward].micros()
		l.BackwardTmp, l.BackwardEarly = beyond(units[skip+i].again.peak, gradMade[skip+i])
	}
	return out
}
