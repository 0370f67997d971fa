package profile

import (
	"cmp"
	"math"
	"slices"
	"time"

	"penstock.example/internal/engine"
	"penstock.example/internal/segment"
	"penstock.example/plan"
	"penstock.example/remat"
	"penstock.example/torch"
)

// Layers are timed in passes. A pass runs each layer as a unit of its own, in the order of a
// training step. So caches and the allocator are as in a step: the layer before has just made the
// input, and everything else was used since the layer last ran. For three layers a pass is
//
//	F0 F1 F2                    forward without gradients
//	S0 S1 S2 S0 S1 S2           forward with gradients, two micro-batches
//	B2 B1 B0                    backward of the first, which makes the gradients of parameters
//	B2 B1 B0                    backward of the second, which adds to them
//	S0 S1 S2 I2 I1 I0 W2 W1 W0  with Config.Split a third one, in two parts; its S comes earlier
//
// A pass holds as much as a step without recomputation. So a long model is timed in windows of
// layers, and with several devices a row of windows at once. A layer too large for a window is
// timed alone, one micro-batch after the other. So are the layers of a row that exceeds a limit.

// window is the layers from <= i < to that are timed in the same passes.
type window struct {
	from, to int
	isTight  bool // one layer, one micro-batch at a time
}

// rows cuts the layers from <= i < to into windows of up to limit bytes. Windows in a row are timed
// at once, each on a device. A layer of more bytes is a row by itself. bytes is by layer.
func rows(bytes []int64, from, to, devices int, limit int64) (list [][]window) {
	bytes = bytes[from:to]
	windows, held, costs := 1, int64(0), make([]float64, len(bytes))
	for i, n := range bytes {
		if held += n; i > 0 && (held > limit || limit == 0) {
			windows, held = windows+1, n
		}
		costs[i] = float64(n)
	}
	windows = min((windows+devices-1)/devices*devices, len(bytes))
	counts, _ := plan.Partition(costs, windows) // no window exceeds limit or the largest layer
	at := from
	for _, n := range counts {
		w := window{at, at + n, limit == 0 || sum(bytes[at-from:at-from+n]) > limit}
		if k := len(list) - 1; k < 0 || len(list[k]) == devices || w.isTight || list[k][0].isTight {
			list = append(list, nil)
		}
		list[len(list)-1] = append(list[len(list)-1], w)
		at += n
	}
	return list
}

func sum[N int | int64](list []N) (all N) {
	for _, n := range list {
		all += n
	}
	return all
}

// inFlight is the number of micro-batches in flight in a pass.
const inFlight = 2

// windowLimit returns how many bytes the layers of a window may hold.
func (p *prober) windowLimit() int64 {
	m := p.Device.Memory()
	if p.isLean {
		return 0
	}
	free := max(cmp.Or(m.Limit, math.MaxInt64)-m.Live, 0) / 2 // temporaries take the other half
	return min(256<<20, free/int64(1+len(p.others)))
}

// passes times the layers. held is the bytes that a forward with gradients leaves, by layer.
func (p *prober) passes(sample []*torch.Tensor, held []int64) (times []layerTimes, t Timing) {
	defer p.reserveOthers()()
	in := p.sampleInput(sample)
	defer func() { in.free() }()
	times, t.Devices = make([]layerTimes, len(p.layers)), 1+len(p.others)
	list := rows(held, 0, len(held), t.Devices, p.windowLimit()/inFlight)
	for len(list) > 0 {
		row := list[0]
		from, to := row[0].from, row[len(row)-1].to
		next, err := p.timeRow(in, row, times)
		if p.isFull(err) && !row[0].isTight {
			clear(times[from:to])
			list = append(rows(held, from, to, 1, 0), list[1:]...)
			continue
		}
		check(err)
		in.free()
		in, list, t.Devices = next, list[1:], min(t.Devices, len(row))
	}
	t.Spread = spread(times)
	return times, t
}

// pass runs the layers of a window once without gradients and on several micro-batches with them,
// and appends how long each operation takes.
func (l *lane) pass(times []layerTimes) {
	e := l.begin()
	l.forward(e, remat.Forward, forwardNoGrad, times)
	e.Free()
	zeroGrads(l.layers[l.from:l.to])
	ops := []int{firstBackward, laterBackward} // even with one micro-batch: each pass times every operation
	if l.Split {
		ops = append(ops, firstPart)
	}
	ahead := inFlight
	if l.isTight || l.MicroBatches == 1 {
		ahead = 1
	}
	var list []*segment.Execution
	for k, op := range ops {
		for len(list) < min(len(ops), k+ahead) {
			list = append(list, l.begin())
			l.forward(list[len(list)-1], remat.ForwardSave, forward, times)
		}
		l.backward(list[k], op, times)
	}
}

func (l *lane) forward(e *segment.Execution, kind remat.Kind, op int, times []layerTimes) {
	for i := l.from; i < l.to; i++ {
		l.run(e, kind, i, &times[i][op])
	}
}

// backward runs the backwards of a micro-batch. If they are in two parts, all first parts come
// before the second ones.
func (l *lane) backward(e *segment.Execution, op int, times []layerTimes) {
	l.giveOnes(e, e, l.from, l.to)
	e.Defer = op == firstPart
	var deferred []int
	for i := l.to - 1; i >= l.from; i-- {
		into, n := &times[i][op], e.Deferred()
		if !requiresGrad(e.Saved(i)) { // nothing goes back
			*into, into = append(*into, 0), new(durations)
		}
		l.run(e, remat.Backward, i, into)
		if e.Deferred() > n {
			deferred = append(deferred, i)
		} else if e.Defer {
			times[i][secondPart] = append(times[i][secondPart], 0)
		}
	}
	for _, i := range deferred {
		l.at = i
		l.time(l.c, &times[i][secondPart], func() { e.Weight(l.c) })
	}
	e.Free()
}

func requiresGrad(xs, skips []*torch.Tensor) bool {
	return slices.ContainsFunc(slices.Concat(xs, skips), func(t *torch.Tensor) bool {
		return t != nil && t.RequiresGrad()
	})
}

// scaleToPasses scales the times of a window's layers so that they add up to the time of whole
// passes. A sum of the layers' 25th percentiles is less, as layers are quick in different passes.
func scaleToPasses(layers []layerTimes) {
	for op := range operations {
		passes := make(durations, len(layers[0][op]))
		for _, t := range layers {
			for k, took := range t[op] {
				passes[k] += took
			}
		}
		if all := micros(layers, op); all > 0 {
			by := passes.micros() / all
			for _, t := range layers {
				for k := range t[op] {
					t[op][k] = time.Duration(float64(t[op][k]) * by)
				}
			}
		}
	}
}

func micros(layers []layerTimes, op int) (all float64) {
	for _, t := range layers {
		all += t[op].micros()
	}
	return all
}

// begin begins an execution at the window's first layer, as if all layers had run before.
func (l *lane) begin() *segment.Execution {
	defer l.c.Release(l.c.Mark())
	in := l.in
	if slices.Contains(l.overwrote[l.from:l.to], true) {
		in.xs = engine.Mapped(in.xs, l.c.Clone)
	}
	e := l.execute(l.from, in.mapped(l.handle), true)
	for i := l.from; i < l.to; i++ {
		e.Again(i)
	}
	return e
}

// giveOnes gives an execution gradients of ones at a boundary: for the tuple, for each pop of a
// skip, and for ties. e has run the units from first to the boundary.
func (p *prober) giveOnes(to, e *segment.Execution, first, boundary int) {
	given, stashed := e.Saved(boundary - 1)
	detached, passing := e.Take(boundary)
	defer torch.FreeAll(detached)
	defer torch.FreeAll(passing)
	ones := func(t *torch.Tensor) *torch.Tensor {
		if t == nil || !t.DType().IsFloat() {
			return nil
		}
		return p.c.Keep(p.c.Op("aten::ones_like", t))
	}
	xs, skips := make([]*torch.Tensor, len(given)), make([][]*torch.Tensor, len(stashed))
	to.GiveGrads(boundary, xs, skips) // before the tensors are made, so that a failure frees them
	for i, t := range given {
		if t.RequiresGrad() && !slices.Contains(given[:i], t) {
			xs[i] = ones(t)
		}
	}
	for i, c := range p.s.Crossing(boundary) {
		t := stashed[i]
		if t == nil && i < len(passing) {
			t = passing[i]
		}
		for range c.Pops {
			skips[i] = append(skips[i], ones(t))
		}
	}
	for _, k := range p.s.Tied(boundary) {
		for i := first; i < boundary; i++ {
			if slices.Contains(p.s.Uses(i), k) {
				to.GiveTie(k, ones(p.s.TieTensor(k)))
				break
			}
		}
	}
}

// layerTimes is the duration of each operation on a layer, pass by pass.
type layerTimes [operations]durations

// The timed operations. A pass has several forwards with gradients.
const (
	forwardNoGrad = iota
	forward
	firstBackward // makes the gradients of parameters
	laterBackward // adds to them
	firstPart     // of a backward in two parts, which adds to them
	secondPart
	operations
)
