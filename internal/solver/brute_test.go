package solver_test

import (
	"fmt"
	"math/rand/v2"

	. "penstock.example/remat"
)

// How the tests know better than the solver: a replay that adds up, after every operation, what
// each byte's owner is; and all plans that the recurrence can write, one by one. None shares code or
// arithmetic with the solver.

// world is what is there: x[i] is 0 for absent, 1 for alone, 2 for a part of X(i), 3 for alone and
// once kept by forward_keep; y(next+1) is there once the loss is done.
type world struct {
	x    [48]uint8
	loss bool
	next int
}

func start(c Chain) world {
	w := world{next: len(c.Layers) - 1}
	w.x[0] = 1
	return w
}

// bytes is what is there, plus what y(also) makes if also >= 0.
func (w world) bytes(c Chain, also int) int64 {
	n := len(c.Layers)
	sum := c.Input
	if w.x[0] == 0 {
		sum = 0
	}
	for i := 1; i <= n; i++ {
		if w.x[i] == 2 {
			sum += c.Layers[i-1].Saved
		} else if w.x[i] != 0 {
			sum += c.Layers[i-1].Output
		}
	}
	// Of a carry, From's maker is counted with x(From+1) already; if that is gone and others that
	// have it are there, it is to be added, once.
	for _, k := range c.Carries {
		if w.x[k.From+1] == 0 {
			for i := k.From + 2; i <= k.To; i++ {
				if w.x[i] != 0 {
					sum += k.Bytes
					break
				}
			}
		}
	}
	made := func(i int) int64 {
		if i == 0 {
			return c.InputGradient
		}
		return c.Layers[i-1].Gradient
	}
	have := func(i int) bool { return i == also || w.loss && i == w.next+1 }
	for i := range n + 1 {
		if have(i) {
			sum += made(i)
		}
	}
	for _, k := range c.GradientCarries {
		if !have(k.To) {
			for i := k.From + 1; i < k.To; i++ {
				if have(i) {
					sum += k.Bytes
					break
				}
			}
		}
	}
	for i := w.next + 1; i < n; i++ {
		sum += c.Layers[i].WeightGradient
	}
	return sum
}

// step is what an operation leads to, its peak and time; ok is false where it is not allowed.
func (w world) step(c Chain, o Op) (after world, peak int64, time float64, ok bool) {
	n, i := len(c.Layers), o.Layer
	during := w
	switch o.Kind {
	case Forward, ForwardKeep, ForwardSave:
		if i >= n || w.x[i] == 0 || w.x[i+1] != 0 {
			return w, 0, 0, false
		}
		l := c.Layers[i]
		if o.Kind == ForwardSave {
			during.x[i+1] = 2
			return during, during.bytes(c, -1) + l.ForwardTmp, l.Forward, true
		}
		during.x[i+1] = 1
		after = during
		if after.x[i] != 2 {
			after.x[i] = 0
			if o.Kind == ForwardKeep {
				after.x[i] = 3
			}
		}
		return after, during.bytes(c, -1) + l.ForwardNoGradTmp, l.ForwardNoGrad, true
	case LossStep:
		if w.loss || w.x[n] == 0 {
			return w, 0, 0, false
		}
		after = w
		after.loss = true
		if after.x[n] != 2 {
			after.x[n] = 0
		}
		return after, w.bytes(c, n) + c.Loss.Tmp, c.Loss.Backward, true
	}
	if !w.loss || i != w.next || w.x[i] == 0 || w.x[i+1] != 2 {
		return w, 0, 0, false
	}
	l := c.Layers[i]
	after = w
	after.x[i+1] = 0
	if after.x[i] != 2 {
		after.x[i] = 0
	}
	after.next--
	return after, w.bytes(c, i) + l.WeightGradient + l.BackwardTmp - l.BackwardEarly, l.Backward, true
}

// tally is what a replay finds.
type tally struct {
	peak, held int64
	// peakBefore and peakAfter are the peaks before the loss and from it on.
	peakBefore, peakAfter int64
	time                  float64
	recomputed            int
}

// run replays operations; an error is an operation that is not allowed, or a plan that is not
// complete.
func run(c Chain, ops []Op) (tally, error) {
	w := start(c)
	t := tally{peak: c.Input, peakBefore: c.Input}
	for at, o := range ops {
		if o.Kind == LossStep {
			gone := w
			if n := len(c.Layers); gone.x[n] != 2 {
				gone.x[n] = 0
			}
			t.held = gone.bytes(c, -1)
		}
		after, peak, time, ok := w.step(c, o)
		if !ok {
			return t, fmt.Errorf("operation %d, %v, is not allowed in %v", at, o, ops)
		}
		if after.loss {
			t.peakAfter = max(t.peakAfter, peak)
		} else {
			t.peakBefore = max(t.peakBefore, peak)
		}
		t.peak, t.time = max(t.peak, peak), t.time+time
		if o.Kind == Forward || o.Kind == ForwardKeep {
			t.recomputed++
		}
		w = after
	}
	if w.next >= 0 {
		return t, fmt.Errorf("layer %d has no backward in %v", w.next, ops)
	}
	return t, nil
}

// everyPlan lists what the recurrence can write for layers i..l of n, the loss being n.
func everyPlan(n, i, l int) [][]Op {
	if i == l {
		if i == n {
			return [][]Op{{{Kind: LossStep}}}
		}
		return [][]Op{{{Kind: ForwardSave, Layer: i}, {Kind: Backward, Layer: i}}}
	}
	var plans [][]Op
	for _, inner := range everyPlan(n, i+1, l) {
		plan := append([]Op{{Kind: ForwardSave, Layer: i}}, inner...)
		plans = append(plans, append(plan, Op{Kind: Backward, Layer: i}))
	}
	for j := i + 1; j <= l; j++ {
		sweep := []Op{{Kind: ForwardKeep, Layer: i}}
		for k := i + 1; k < j; k++ {
			sweep = append(sweep, Op{Kind: Forward, Layer: k})
		}
		rights, lefts := everyPlan(n, j, l), everyPlan(n, i, j-1)
		for _, right := range rights {
			for _, left := range lefts {
				plan := append(append([]Op{}, sweep...), right...)
				plans = append(plans, append(plan, left...))
			}
		}
	}
	return plans
}

// dice describe random chains.
type dice struct {
	layers              int
	bytes               int64 // sizes are below
	carries             int   // of inputs, and as many of gradients, at most
	zeros               float64
	weights, zeroTimes  bool
	gradientLikeOutputs bool // as in rotor
}

// chain draws one: whole numbers, so that sums of times are exact.
func (d dice) chain(r *rand.Rand) Chain {
	size := func() int64 {
		if r.Float64() < d.zeros {
			return 0
		}
		return r.Int64N(d.bytes)
	}
	time := func() float64 {
		if d.zeroTimes && r.IntN(3) == 0 {
			return 0
		}
		return float64(1 + r.IntN(20))
	}
	c := Chain{Input: size(), InputGradient: size(), Loss: Loss{Backward: time(), Tmp: size()}}
	for range d.layers {
		l := Layer{Forward: time(), ForwardNoGrad: time(), Backward: time(), Output: size(),
			ForwardTmp: size(), ForwardNoGradTmp: size(), BackwardTmp: size(), Gradient: size()}
		l.Saved = l.Output + size()
		if r.IntN(4) == 0 { // some of what it saves goes before it needs most
			l.BackwardTmp, l.BackwardEarly = 0, r.Int64N(l.Saved+1)
		}
		if d.weights {
			l.WeightGradient = size()
		}
		if d.gradientLikeOutputs {
			l.Gradient = l.Output
		}
		c.Layers = append(c.Layers, l)
	}
	if d.gradientLikeOutputs {
		c.InputGradient = c.Input
	}
	n := d.layers
	left, leftGradient := make([]int64, n+1), make([]int64, n+1)
	left[0], leftGradient[0] = c.Input, c.InputGradient
	for i, l := range c.Layers {
		left[i+1], leftGradient[i+1] = l.Output, l.Gradient
	}
	for range d.carries {
		from := r.IntN(n+1) - 1
		to := from + 1 + r.IntN(n-from)
		if bytes := r.Int64N(left[from+1] + 1); r.IntN(2) == 0 {
			c.Carries = append(c.Carries, Carry{From: from, To: to, Bytes: bytes})
			left[from+1] -= bytes
		}
		if bytes := r.Int64N(leftGradient[to] + 1); r.IntN(2) == 0 {
			c.GradientCarries = append(c.GradientCarries, Carry{From: from, To: to, Bytes: bytes})
			leftGradient[to] -= bytes
		}
	}
	return c
}
