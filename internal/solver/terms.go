package solver

import (
	"slices"

	"penstock.example/remat"
)

// terms are a chain's bytes and times, prepared for the recurrence that all solvers here share.
//
// # The recurrence
//
// Opt(i, l, m) is the least time of recomputation for layers i..l: from x(i) and y(l+1) to y(i). The
// loss is layer L, the last. m is the available bytes. They include y(l+1), but neither the kept ones of
// x(0)..x(i) nor the gradients of parameters of layers after l. A plan begins in one of two ways:
//
//	save i         Opt(i+1, l, m - Saved(i))
//	               if m >= saving(i, l)
//	keep up to j   nograd(i, j) + Opt(j, l, m - a(i, j)) + Opt(i, j-1, m - G(j, l))
//	               if m >= |y(l+1)| + sweep(i, j),  i < j <= l
//
// The first runs the layer once, with gradients; its backward follows after all later ones. The second
// runs i..j-1 without gradients (keep i, then forward i+1 .. j-1), goes on from x(j) alone, and returns
// to x(i) after the backward of j. Opt leaves out the operations of every plan, a forward with gradients
// and a backward of each layer and the loss. So a plan without recomputation costs exactly 0. A single
// layer, or the loss, can only be saved: Opt(l, l, m) = 0 if m >= saving(l, l).
//
//	a(i, j)       bytes of x(j) that are no part of x(i): Layers[j-1].Output, and carries that began
//	              after x(i): From >= i, From < j-1, To >= j. A carry is a part of consecutive inputs,
//	              and x(i) is the last input kept before x(j), so no earlier one matters.
//	sweep(i, j)   the most bytes without x(i) in keep i, forward i+1, .., forward j-1. Forward k takes
//	              a(i, k) + Layers[k].Output + ForwardNoGradTmp; a(i, i) is 0.
//	saving(i, l)  the greater of two moments. The forward: |y(l+1)| + Saved + ForwardTmp. The backward:
//	              |y(i+1)| + Saved + made(i) + G(i, l) + BackwardTmp - BackwardEarly, with made(i) the
//	              bytes of y(i) that are no part of y(i+1). For the loss it is |y(L)| + Tmp.
//	|y(i)|        made(i), and the GradientCarries with To > i > From. |y(L+1)| is 0.
//	G(k, l)       WeightGradient of layers k..l; the loss has none.
//
// The recurrence is rotor's (Beaumont et al., cited in package remat), with sizes of pairs, gradients of
// their own size and of parameters, and time and temporaries of a forward without gradients. Its plans
// are persistent: a kept input stays until its backward. Of these it finds the best.
type terms struct {
	n     int // layers, without the loss
	chain remat.Chain

	a, sweep []int64   // of (i, j), i < j; see pair
	y        []int64   // |y(i)|, i = 0 .. n+1
	yHeld    []int64   // by i: the bytes of y(i) held during forwards of layers before i
	loss     int64     // saving(n, n)
	made     []int64   // made(i), i = 0 .. n
	saved    []int64   // Saved(i), i = 0 .. n: 0 of the loss
	savedSum []int64   // of layers before i
	gradSum  []int64   // WeightGradient of layers before i, i = 0 .. n+1
	nograd   []float64 // ForwardNoGrad of layers before i
	once     float64   // time of a plan that recomputes nothing
	grain    int64     // of all bytes that a grid rounds
}

// newTerms returns the terms of a chain. With receives a later stage has the loss, which then needs no
// bytes here: x(L) was sent. y(L) arrives just before the backward of layer L-1, after all forwards
// before it.
func newTerms(c remat.Chain, receives bool) *terms {
	n := len(c.Layers)
	t := &terms{
		n: n, chain: c,
		a: make([]int64, n*(n+1)/2), sweep: make([]int64, n*(n+1)/2),
		y: make([]int64, n+2), made: make([]int64, n+1),
		saved: make([]int64, n+1), savedSum: make([]int64, n+2), gradSum: make([]int64, n+2),
		nograd: make([]float64, n+1), once: c.Once(),
	}
	t.made[0] = c.InputGradient
	for i, l := range c.Layers {
		t.made[i+1] = l.Gradient
		t.saved[i] = l.Saved
		t.savedSum[i+1] = t.savedSum[i] + l.Saved
		t.gradSum[i+1] = t.gradSum[i] + l.WeightGradient
		t.nograd[i+1] = t.nograd[i] + l.ForwardNoGrad
	}
	t.savedSum[n+1], t.gradSum[n+1] = t.savedSum[n], t.gradSum[n]
	copy(t.y, t.made)
	for _, carry := range c.GradientCarries {
		for i := max(carry.From+1, 0); i < carry.To; i++ {
			t.y[i] += carry.Bytes
		}
	}
	t.pairs()
	t.yHeld = slices.Clone(t.y)
	t.loss = t.y[n] + c.Loss.Tmp
	if receives {
		t.loss, t.yHeld[n] = -t.kept(0, n), 0
	}
	t.grain = grain(c)
	return t
}

// grain is the greatest common divisor of the sizes of inputs and saved blocks; 1 if all are 0.
func grain(c remat.Chain) int64 {
	g := int64(0)
	add := func(bytes int64) {
		for bytes != 0 {
			g, bytes = bytes, g%bytes
		}
	}
	for _, l := range c.Layers {
		add(l.Output)
		add(l.Saved)
	}
	for _, k := range c.Carries {
		add(k.Bytes)
	}
	return max(g, 1)
}

// pair is where (i, j) lies in a and sweep, i < j <= n.
func (t *terms) pair(i, j int) int { return i*t.n - i*(i-1)/2 + j - i - 1 }

// pairs fills a and sweep.
func (t *terms) pairs() {
	// A carry is new in x(j) for every x(i) with i <= From: note it at i = From, then sum down.
	for _, carry := range t.chain.Carries {
		if carry.From < 0 {
			continue // a part of x(0), which is always held
		}
		for j := carry.From + 2; j <= min(carry.To, t.n); j++ {
			t.a[t.pair(carry.From, j)] += carry.Bytes
		}
	}
	for i := t.n - 2; i >= 0; i-- {
		for j := i + 2; j <= t.n; j++ {
			t.a[t.pair(i, j)] += t.a[t.pair(i+1, j)]
		}
	}
	for i := range t.n {
		highest := int64(0)
		for j := i + 1; j <= t.n; j++ {
			l := &t.chain.Layers[j-1]
			t.a[t.pair(i, j)] += l.Output
			before := int64(0)
			if j-1 > i {
				before = t.a[t.pair(i, j-1)]
			}
			highest = max(highest, before+l.Output+l.ForwardNoGradTmp)
			t.sweep[t.pair(i, j)] = highest
		}
	}
}

// weights is G(k, l).
func (t *terms) weights(k, l int) int64 { return t.gradSum[l+1] - t.gradSum[k] }

// saving is the bytes of save i in (i, l): of the layer's forward and of its backward.
func (t *terms) saving(i, l int) int64 {
	if i == t.n {
		return t.loss
	}
	return max(t.yHeld[l+1]+t.savingEarly(i), t.savingLate(i, l))
}

// savingEarly is the forward's part of saving, without |y(l+1)|.
func (t *terms) savingEarly(i int) int64 { return t.saved[i] + t.chain.Layers[i].ForwardTmp }

// savingLate is the backward's part of saving.
func (t *terms) savingLate(i, l int) int64 {
	layer := &t.chain.Layers[i]
	return t.y[i+1] + t.saved[i] + t.made[i] + t.weights(i, l) + layer.BackwardTmp - layer.BackwardEarly
}

// sweeping is the bytes to compute x(j) from x(i) in (i, l).
func (t *terms) sweeping(i, j, l int) int64 { return t.yHeld[l+1] + t.sweep[t.pair(i, j)] }

// kept is a(i, j).
func (t *terms) kept(i, j int) int64 { return t.a[t.pair(i, j)] }
