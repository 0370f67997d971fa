package plan

import "iter"

// part is layers first to last, forward and backward.
type part struct{ first, last int }

var nothing = part{-1, -1}

// way is one way to do layers i to l forward and backward: run those before layer at without gradients, then, if save, layer at with them, then the inner part, then, if save, layer at's backward, and at
// last the outer part. It takes time, and bytes as need has it, beside what the parts take; to these bytes are left what there is less innerLess, or outerLess.
type way struct {
	at                   int
	save                 bool
	time                 float64
	need                 int64
	inner, outer         part
	innerLess, outerLess int64
}

// ways are those that Revolve knows. With saved a checkpoint is x(j) and X(j+1), without it is x(j).
func (r *Revolve) ways(i, l int) iter.Seq[way] {
	n := len(r.chain.Layers)
	return func(yield func(way) bool) {
		switch {
		case i == n:
			yield(way{at: n, time: r.chain.Loss.Backward, need: r.chain.madeGradient(n) + r.chain.Loss.Tmp, inner: nothing, outer: nothing})
			return
		case i == l || r.saved:
			if !yield(r.saving(i, l)) {
				return
			}
		}
		for j := i + 1; j <= l; j++ {
			w := way{at: j, inner: part{j, l}}
			if r.saved && j < n {
				w = r.saving(j, l)
			}
			w.time += r.sumNoGrad[j] - r.sumNoGrad[i]
			store := r.beyond[i][j]
			w.need += store
			w.innerLess += store
			w.need = max(w.need, r.sweep[i][j]+r.y[l+1], w.innerLess)
			w.outer, w.outerLess = part{i, j - 1}, r.weights(j, l)
			w.need = max(w.need, w.outerLess)
			if !yield(w) {
				return
			}
		}
	}
}

// saving is the way that saves layer i first of those up to l.
func (r *Revolve) saving(i, l int) way {
	layer := r.chain.Layers[i]
	w := way{at: i, save: true, time: layer.Forward + layer.Backward, inner: nothing, outer: nothing}
	done := r.weights(i+1, l)
	w.need = max(layer.Saved+layer.ForwardTmp+r.y[l+1], layer.Saved+r.y[i+1]+r.chain.madeGradient(i)+layer.WeightGradient+layer.BackwardTmp-layer.BackwardEarly+done)
	if i < l {
		w.inner, w.innerLess = part{i + 1, l}, layer.Saved
	}
	return w
}

// revolveCosts is what ways are made of.
type revolveCosts struct {
	chain      Chain
	sumNoGrad  []float64 // of the layers before
	sumWeights []int64   // of the layers before
	y          []int64   // y(i), with what it shares with later ones; y(n+1) is none
	// For i < j: beyond is x(j) as far as it is not a part of x(i), sweep the most bytes beside x(i) and y while layers i to j-1 run without gradients.
	beyond, sweep [][]int64
}

func newRevolveCosts(c Chain) revolveCosts {
	n := len(c.Layers)
	r := revolveCosts{chain: c, sumNoGrad: make([]float64, n+1), sumWeights: make([]int64, n+1), y: make([]int64, n+2), beyond: make([][]int64, n+1), sweep: make([][]int64, n+1)}
	for i, l := range c.Layers {
		r.sumNoGrad[i+1] = r.sumNoGrad[i] + l.ForwardNoGrad
		r.sumWeights[i+1] = r.sumWeights[i] + l.WeightGradient
	}
	for i := range n + 1 {
		r.y[i] = c.madeGradient(i)
		for _, k := range c.GradientCarries {
			if k.To > i && k.From < i {
				r.y[i] += k.Bytes
			}
		}
	}
	for i := range n + 1 {
		r.beyond[i], r.sweep[i] = make([]int64, n+1), make([]int64, n+1)
		for j := i + 1; j <= n; j++ {
			r.beyond[i][j] = c.made(j - 1)
		}
		for _, k := range c.Carries {
			if k.From < i {
				continue // a part of x(i), if of any
			}
			for j := k.From + 2; j <= k.To; j++ {
				r.beyond[i][j] += k.Bytes
			}
		}
		for j := i + 1; j <= n; j++ {
			l := c.Layers[j-1]
			r.sweep[i][j] = max(r.sweep[i][j-1], r.beyond[i][j-1]+l.Output+l.ForwardNoGradTmp)
		}
	}
	return r
}

// weights is the bytes of gradients of the parameters of layers first to last; the loss, layer n, has none.
func (r *revolveCosts) weights(first, last int) int64 {
	return r.sumWeights[min(last+1, len(r.chain.Layers))] - r.sumWeights[min(first, len(r.chain.Layers))]
}
