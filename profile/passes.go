package profile

import (
	"slices"
	"time"

	"penstock/remat/plan"
	"penstock/segment"
	"penstock/torch"
)

// Units are timed in passes. A pass runs the units once each in the order of a training step, so that each finds the caches and the allocator as it does there: what it reads was made by the unit
// before, and everything else has been used since it last ran. For three units a pass is
//
//	F0 F1 F2                    forward without gradients
//	S0 S1 S2 L B2 B1 B0         a first micro-batch: the gradients of parameters are made
//	S0 S1 S2 L B2 B1 B0         a later one: they are added to
//
// A pass holds what a step without recomputation holds, and that may be the memory that there is not. A long chain is therefore timed in windows of units, one after the other, each of which holds more
// than caches do.

// windowBytes is how many bytes the units of a window may save and make, beyond which another window begins.
const windowBytes = 256 << 20

// window is the units from <= i < to that are timed in the same passes.
type window struct{ from, to int }

// windows cuts units into as few windows as greedily hold at most so many bytes each. A unit that takes more is a window of its own.
func windows(units []figures, most int64) (list []window) {
	var held int64
	for i, u := range units {
		bytes := u.save.delta + u.weights
		if i == 0 || held+bytes > most {
			list, held = append(list, window{i, i}), 0
		}
		list[len(list)-1].to, held = i+1, held+bytes
	}
	return list
}

// available is how many bytes the units of a window may hold.
func (p *prober) available() int64 {
	m := p.Device.Memory()
	if m.Limit == 0 {
		return windowBytes
	}
	return min(windowBytes, max(m.Limit-m.Live, 0)/2) // temporaries take the other half
}

// passes times the units of a stage that was given in, which it frees.
func (p *prober) passes(in past, units []figures) error {
	defer func() { in.free() }()
	for _, w := range windows(units, p.available()) {
		next, err := p.window(in, w, units)
		if err != nil {
			return err
		}
		in.free()
		in = next
	}
	return nil
}

// window times the units of a window, and returns what the next one is given.
func (p *prober) window(in past, w window, units []figures) (next past, err error) {
	name := units[w.from].name
	if w.to > w.from+1 {
		name += ".." + units[w.to-1].name
	}
	err = attempt(name, func() error {
		defer p.c.Close()
		defer p.dropHeld()
		for _, u := range units[w.from:w.to] {
			for _, l := range u.list {
				defer prepare(p.c, l, p.Seed)()
			}
		}
		for k := range p.Warmup + p.Repeats {
			if err := p.ctx.Err(); err != nil {
				return err
			}
			p.pass(in, w, units, k >= p.Warmup)
		}
		last := p.begin(in, w)
		for i := w.from; i < w.to; i++ {
			p.do(last, plan.Op{Kind: plan.Forward, Layer: i})
		}
		next.xs, next.skips = last.Take(w.to)
		return nil
	})
	return next, err
}

// pass runs the units of a window once, and records what each operation takes if it is to count.
func (p *prober) pass(in past, w window, units []figures, counts bool) {
	run := func(walk *segment.Walk, kind plan.Kind, i int, into *timed) {
		mark := p.c.Mark()
		took := p.do(walk, plan.Op{Kind: kind, Layer: i}).took
		p.c.Release(mark)
		if counts {
			*into = append(*into, took)
		}
	}
	walk := p.begin(in, w)
	for i := w.from; i < w.to; i++ {
		run(walk, plan.Forward, i, &units[i].times.forwardNoGrad)
	}
	walk.Free()
	for _, u := range units[w.from:w.to] {
		for _, l := range u.list {
			zeroGrads(l)
		}
	}
	for later := range 2 {
		walk := p.begin(in, w)
		for i := w.from; i < w.to; i++ {
			run(walk, plan.ForwardSave, i, &units[i].times.forward)
		}
		p.giveOnes(walk, w)
		for i := w.to - 1; i >= w.from; i-- {
			run(walk, plan.Backward, i, &units[i].times.backward[later])
		}
		walk.Free()
	}
}

// begin is a walk that has come to a window's first unit. Its units have run before.
func (p *prober) begin(in past, w window) *segment.Walk {
	walk := p.walkFrom(in, w.from)
	for i := w.from; i < w.to; i++ {
		walk.Again(i)
	}
	return walk
}

// giveOnes gives a walk ones as the gradients of what a window's units have given to those behind it: the tuple, skips by pop, and parameters that units behind the window use too.
func (p *prober) giveOnes(walk *segment.Walk, w window) {
	given, stashed := walk.Saved(w.to - 1)
	detached, passing := walk.Take(w.to)
	defer torch.FreeAll(detached)
	defer torch.FreeAll(passing)
	ones := func(t *torch.Tensor) *torch.Tensor {
		if t == nil || !t.DType().IsFloat() {
			return nil
		}
		return p.c.Keep(p.c.OnesLike(t))
	}
	xs, skips := make([]*torch.Tensor, len(given)), make([][]*torch.Tensor, len(stashed))
	for i, t := range given {
		if t.RequiresGrad() && !slices.Contains(given[:i], t) {
			xs[i] = ones(t)
		}
	}
	for i, pops := range p.s.Crossing(w.to) {
		t := stashed[i]
		if t == nil && i < len(passing) {
			t = passing[i]
		}
		for range pops {
			skips[i] = append(skips[i], ones(t))
		}
	}
	for _, k := range p.s.Tied(w.to) {
		for i := w.from; i < w.to; i++ {
			if p.s.Uses(i, k) {
				walk.GiveTie(k, ones(p.s.TieTensor(k)))
				break
			}
		}
	}
	walk.GiveGrads(w.to, xs, skips)
}

// unitTimes is what the operations on a unit took, run by run.
type unitTimes struct {
	forwardNoGrad, forward timed
	backward               [2]timed // of a first micro-batch, and of a later one
}

// all are the times that a step without recomputation has, and those of recomputing.
func (t unitTimes) all() []timed {
	return []timed{t.forwardNoGrad, t.forward, t.backward[0], t.backward[1]}
}

// spread is that of each operation; of the backwards that of the first micro-batch's.
func (t unitTimes) spread() Spread {
	return Spread{spread(t.forwardNoGrad), spread(t.forward), spread(t.backward[0])}
}

// micros is what the run that counts took, in microseconds.
func (t timed) micros() float64 { return float64(t.typical()) / float64(time.Microsecond) }
