package profile

import (
	"errors"
	"slices"
	"time"

	"penstock.example/balance"
	"penstock.example/remat"
	"penstock.example/segment"
	"penstock.example/torch"
)

// Layers are timed in passes. A pass runs each layer once, as a unit of its own, in the order of a
// training step. So each finds the caches and the allocator as it does there: what it reads was
// made by the layer before, and everything else has been used since it last ran. For three layers a
// pass is
//
//	F0 F1 F2                    forward without gradients
//	S0 S1 S2 S0 S1 S2           forward with gradients, two micro-batches
//	B2 B1 B0                    backward of the first: the gradients of parameters are made
//	B2 B1 B0                    of the later one: they are added to
//	S0 S1 S2 I2 I1 I0 W2 W1 W0  with Config.Split a third one, in front of that, whose backwards are in two parts
//
// With one micro-batch at a time a backward would find in the caches what its forward has just left there, as it does
// in steps of one micro-batch (Config.MicroBatches).
//
// A pass holds what a step without recomputation holds, and that may be more than there is. A long
// model is therefore timed in windows of layers, one after the other, each of which holds more than
// caches do. Only a layer that is a window of its own may hold more, and does one micro-batch after the other. With
// several devices a row of windows is timed side by side (beside.go). Where a limit refuses a row, each of its layers
// is timed by itself, as all are with Config.Lean, and holds no more than its backward does in any step.

// windowBytes is how many bytes the layers of a window may save and make, beyond which another
// window begins.
const windowBytes = 256 << 20

// window is the layers from <= i < to that are timed in the same passes.
type window struct{ from, to int }

// windows cuts layers, which take so many bytes each, into as few windows as greedily hold at most
// so many bytes. A layer that takes more is a window of its own.
func windows(bytes []int64, most int64) (list []window) {
	var held int64
	for i, n := range bytes {
		if i == 0 || held+n > most {
			list, held = append(list, window{i, i}), 0
		}
		list[len(list)-1].to, held = i+1, held+n
	}
	return list
}

// rows puts windows that are timed side by side into a row, as many as there are devices. Windows of a row
// hold at most as many bytes as there are for all, or are alone.
func rows(bytes []int64, devices int, each, all int64) (list [][]window) {
	cut := windows(bytes, each)
	if devices > 1 {
		n := min((len(cut)+devices-1)/devices*devices, len(bytes))
		costs := make([]float64, len(bytes))
		for i, b := range bytes {
			costs[i] = float64(b)
		}
		if counts, err := balance.Partition(costs, n); err == nil {
			at := 0
			cut = cut[:0]
			for _, n := range counts {
				cut, at = append(cut, window{at, at + n}), at+n
			}
		}
	}
	var held int64
	for _, w := range cut {
		takes := sum(bytes[w.from:w.to])
		if k := len(list) - 1; k < 0 || len(list[k]) == devices || held+takes > all {
			list, held = append(list, nil), 0
		}
		list[len(list)-1], held = append(list[len(list)-1], w), held+takes
	}
	return list
}

func sum[N int | int64](list []N) (all N) {
	for _, n := range list {
		all += n
	}
	return all
}

// beyondCaches is how many bytes two micro-batches save of which caches hold nothing until their backward.
const beyondCaches = 48 << 20

// inFlight is how many micro-batches are in flight in a pass, each of which saves so many bytes. What a device of
// several holds is that of fewer layers, and of more micro-batches. Beyond what caches hold it makes no difference.
func (p *prober) inFlight(saved int64) int {
	if 2*saved >= beyondCaches {
		return 2
	}
	return 2 * (1 + len(p.Beside))
}

// room is how many bytes the layers of a window may hold, and those of all windows side by side.
func (p *prober) room() (each, all int64) {
	n := int64(1 + len(p.Beside))
	m := p.Device.Memory()
	if m.Limit == 0 {
		return windowBytes, n * windowBytes
	}
	all = min(n*windowBytes, max(m.Limit-m.Live, 0)/2) // temporaries take the other half
	return all / n, all
}

// passes times the layers. held is the bytes that a forward with gradients leaves of each. atWork is how many
// devices worked all the while.
func (p *prober) passes(sample []*torch.Tensor, held []int64) (times []unitTimes, atWork int, err error) {
	p.flight = p.inFlight(sum(held))
	bytes := make([]int64, len(held))
	for i, l := range p.layers {
		bytes[i] = int64(p.flight) * held[i]
		for _, q := range l.State() {
			if !q.Owner().Exists() || p.isAway(q) { // it is made for the time of the window
				bytes[i] += q.Owner().Bytes()
			}
			if q.Trainable() {
				bytes[i] += q.Owner().Bytes() // the gradient
			}
		}
	}
	var in input
	err = attempt(theSample, func() error {
		for _, x := range sample {
			in.xs = append(in.xs, p.c.Keep(p.c.Detach(x)))
		}
		return nil
	})
	defer func() { in.free() }()
	times = make([]unitTimes, len(p.layers))
	each, all := p.room()
	alone := map[window]bool{}
	single := func(from, to int) (singles [][]window) {
		for i := from; i < to; i++ {
			w := window{i, i + 1}
			singles, alone[w], times[i] = append(singles, []window{w}), true, unitTimes{}
		}
		return singles
	}
	list := rows(bytes, 1+len(p.Beside), each, all)
	if p.Lean {
		list = single(0, len(p.layers))
	}
	for len(list) > 0 && err == nil {
		row := list[0]
		var next input
		next, err = p.sideBySide(in, row, times, func(w window) bool { return alone[w] || sum(bytes[w.from:w.to]) > each })
		if errors.Is(err, torch.ErrOutOfMemory) && p.Device.Memory().Limit > 0 && !alone[row[0]] {
			list, err = append(single(row[0].from, row[len(row)-1].to), list[1:]...), nil
			continue
		}
		if atWork == 0 || len(row) < atWork {
			atWork = len(row)
		}
		in.free()
		in, list = next, list[1:]
	}
	return times, atWork, err
}

// pass runs the layers of a window once without gradients and on several micro-batches with them, and records how
// long each operation takes.
func (l *lane) pass(times []unitTimes) error {
	e := l.begin(l.in, l.window)
	for i := l.from; i < l.to; i++ {
		took, err := l.run(e, remat.Forward, i)
		if err != nil {
			return err
		}
		times[i][forwardNoGrad] = append(times[i][forwardNoGrad], took)
	}
	e.Free()
	for _, layer := range l.layers[l.from:l.to] {
		zeroGrads(layer)
	}
	var list []*segment.Execution // in flight
	save := func() error {
		e, err := l.saved(times)
		list = append(list, e)
		return err
	}
	all := l.flight // in every window, so that times of layers add up pass by pass
	ahead, alone := all, l.tight || l.MicroBatches == 1
	if alone {
		ahead = 1
	}
	for range ahead {
		if err := save(); err != nil {
			return err
		}
	}
	for k := range all {
		op := laterBackward
		if k == 0 {
			op = firstBackward
		}
		if l.Split && k == all-1 && !alone {
			if err := save(); err != nil {
				return err
			}
		}
		if err := l.back(list[k], op, times); err != nil {
			return err
		}
		if alone && (k < all-1 || l.Split) {
			if err := save(); err != nil {
				return err
			}
		}
	}
	if !l.Split {
		return nil
	}
	return l.parts(list[all], times)
}

// parts runs the backwards of a micro-batch in two parts: all first parts, and then all second ones.
func (l *lane) parts(e *segment.Execution, times []unitTimes) error {
	goes := l.goes(e)
	l.giveOnes(e, l.window)
	e.Defer = true
	var deferred []int
	for i := l.to - 1; i >= l.from; i-- {
		n := e.Deferred()
		took, err := l.run(e, remat.Backward, i)
		if err != nil {
			return err
		}
		if !goes[i] {
			took = 0
		}
		times[i][firstPart] = append(times[i][firstPart], took)
		if e.Deferred() > n {
			deferred = append(deferred, i)
		} else {
			times[i][secondPart] = append(times[i][secondPart], 0)
		}
	}
	for _, i := range deferred {
		l.at = i
		mark := l.c.Mark()
		took := l.read(func() { e.Weight(l.c) }).took
		l.c.Release(mark)
		times[i][secondPart] = append(times[i][secondPart], took)
	}
	e.Free()
	return nil
}

// goes says which layers go back.
func (l *lane) goes(e *segment.Execution) []bool {
	out := make([]bool, l.to)
	for i := l.from; i < l.to; i++ {
		xs, skips := e.Saved(i)
		out[i] = slices.ContainsFunc(slices.Concat(xs, skips), func(t *torch.Tensor) bool { return t != nil && t.RequiresGrad() })
	}
	return out
}

// saved runs the forwards with gradients of a micro-batch.
func (l *lane) saved(times []unitTimes) (*segment.Execution, error) {
	e := l.begin(l.in, l.window)
	for i := l.from; i < l.to; i++ {
		took, err := l.run(e, remat.ForwardSave, i)
		if err != nil {
			return nil, err
		}
		times[i][forward] = append(times[i][forward], took)
	}
	return e, nil
}

// back runs the backwards of a micro-batch.
func (l *lane) back(e *segment.Execution, op int, times []unitTimes) error {
	goes := l.goes(e)
	l.giveOnes(e, l.window)
	for i := l.to - 1; i >= l.from; i-- {
		took, err := l.run(e, remat.Backward, i)
		if err != nil {
			return err
		}
		if !goes[i] {
			took = 0
		}
		times[i][op] = append(times[i][op], took)
	}
	e.Free()
	return nil
}

// level scales the times of layers so that they add up to the time of whole passes. Without it a sum
// over layers would be too low: in no pass is every layer as quick as in its best quarter.
func level(layers []unitTimes) {
	passes := added(layers)
	for op, pass := range passes {
		var layer time.Duration
		for _, t := range layers {
			layer += t[op].typical()
		}
		for _, t := range layers {
			t[op].scale(pass.typical(), layer)
		}
	}
}

// together is the times of a unit of several layers: pass by pass, and scaled so that they are the sum of
// the layers' times.
func together(layers []unitTimes) unitTimes {
	unit := added(layers)
	for op, t := range unit {
		var layer time.Duration
		for _, l := range layers {
			layer += l[op].typical()
		}
		t.scale(layer, t.typical())
	}
	return unit
}

// added adds times up, pass by pass.
func added(list []unitTimes) (all unitTimes) {
	for i, times := range list {
		for op, t := range times {
			if i == 0 {
				all[op] = slices.Clone(t)
				continue
			}
			all[op] = all[op][:min(len(all[op]), len(t))] // other windows may have had more passes
			for k := range all[op] {
				all[op][k] += t[k]
			}
		}
	}
	return all
}

// scale multiplies times by a fraction; that of nothing is 1.
func (t timed) scale(by, of time.Duration) {
	if of <= 0 {
		return
	}
	for k := range t {
		t[k] = time.Duration(float64(t[k]) * by.Seconds() / of.Seconds())
	}
}

// spoils reports whether a layer of a window overwrites memory of the window's input, which passes begin from,
// or may do so as nobody has looked.
func (p *prober) spoils(w window) bool {
	if p.seen == nil {
		return true
	}
	for i := w.from; i < w.to; i++ {
		if !p.seen.overwrote[i] && !overwrites(p.layers[i]) {
			continue
		}
		if i == w.from || i >= len(p.seen.in) || slices.ContainsFunc(p.seen.in[i], func(f flow) bool { return f.block.creator < w.from }) {
			return true
		}
	}
	return false
}

// begin begins an execution at a window's first layer. Its layers have run before.
func (p *prober) begin(in input, w window) *segment.Execution {
	mark := p.c.Mark()
	defer func() { p.c.Release(mark) }()
	given := in
	if p.spoils(w) {
		given.xs = nil
		for i, x := range in.xs {
			if k := slices.Index(in.xs[:i], x); k >= 0 {
				given.xs = append(given.xs, given.xs[k])
			} else {
				given.xs = append(given.xs, p.c.Clone(x))
			}
		}
	}
	e := p.executeFrom(given, w.from)
	for i := w.from; i < w.to; i++ {
		e.Again(i)
	}
	return e
}

// giveOnes gives an execution ones as the gradients of what later layers get from a window: the
// tuple, skips by pop, and parameters that they use too.
func (p *prober) giveOnes(e *segment.Execution, w window) {
	given, stashed := e.Saved(w.to - 1)
	detached, passing := e.Take(w.to)
	defer torch.FreeAll(detached)
	defer torch.FreeAll(passing)
	ones := func(t *torch.Tensor) *torch.Tensor {
		if t == nil || !t.DType().IsFloat() {
			return nil
		}
		return p.c.Keep(p.c.OnesLike(t))
	}
	xs, skips := make([]*torch.Tensor, len(given)), make([][]*torch.Tensor, len(stashed))
	e.GiveGrads(w.to, xs, skips) // before they are made: it frees what a failure has left
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
				e.GiveTie(k, ones(p.s.TieTensor(k)))
				break
			}
		}
	}
}

// unitTimes is how long the operations on a layer, or a unit, took, pass by pass.
type unitTimes [operations]timed

// Operations that are timed. A pass has several forwards with gradients.
const (
	forwardNoGrad = iota
	forward
	firstBackward // makes the gradients of parameters
	laterBackward // adds to them
	firstPart     // of a backward in two parts, which adds to them
	secondPart
	operations
)

// spread is the spread of each operation; of the backwards, of the first micro-batch's.
func (t unitTimes) spread() Spread {
	return Spread{spread(t[forwardNoGrad]), spread(t[forward]), spread(t[firstBackward])}
}

// micros is the time that counts, in microseconds.
func (t timed) micros() float64 { return float64(t.typical()) / float64(time.Microsecond) }
