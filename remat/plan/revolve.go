package plan

import (
	"context"
	"fmt"
	"math"

	"penstock/internal/arg"
)

// RevolveConfig says how finely and how Revolve counts.
type RevolveConfig struct {
	Slots int // that the memory is counted in; 0: 300. Time grows with it, and by the cube of the layers
	// Saved stores X(i+1) with each x(i) that is stored, so that what is stored is not computed again; layers can be computed from x(0), and from what lies in an X, as well. It finds better plans than rotor's
	// variant, which places its checkpoints as if the forward of layer i were still to be run again.
	Saved bool
}

// Revolve answers with the plans of Griewank and Walther's Revolve (ACM TOMS 26(1), 2000) for layers of different times and sizes, under limits up to a greatest. It knows checkpoints of inputs
// alone: each layer's forward with gradients comes just before its backward. rotor compares with it as griewank_heterogeneous, and with RevolveConfig.Saved as its variant with X.
//
// The plans are the fastest of their kind but for the counting in slots, each size rounded up, so that a limit may be found too low that is not; none has a peak above its limit. Where rotor sets aside
// the greatest temporary of all for the whole plan, here each operation has its own. A Revolve does not change, and may be used concurrently.
type Revolve struct {
	revolveCosts
	saved bool
	unit  int64 // bytes of a slot
	slots int
	// least[i][l-i][m] is the least time for layers i to l forward and backward, in m slots beside x(i) and what was there before; y(l+1) takes of these. Infinite is no way. Where l is the number
	// of layers it is from i to the loss and back.
	least [][][]float32
	low   [][]int // first index of a row that is finite
}

// NewRevolve computes the table. It takes about 2*slots*layers^2 bytes. The error is that of ctx or of the chain.
func NewRevolve(ctx context.Context, c Chain, most int64, config RevolveConfig) (*Revolve, error) {
	if err := arg.Context(ctx, "plan"); err != nil {
		return nil, err
	}
	if err := c.Check(); err != nil {
		return nil, err
	}
	if config.Slots == 0 {
		config.Slots = 300
	}
	room := most - c.Input
	if config.Slots < 1 || room < 0 {
		return nil, fmt.Errorf("plan: Revolve with %d slots for %d bytes, of which the input takes %d; want a slot at least, and room for the input", config.Slots, most, c.Input)
	}
	r := &Revolve{revolveCosts: newRevolveCosts(c), saved: config.Saved, slots: config.Slots, unit: max(1, (room+int64(config.Slots)-1)/int64(config.Slots))}
	n := len(c.Layers)
	r.least, r.low = make([][][]float32, n+1), make([][]int, n+1)
	for i := range r.least {
		r.least[i], r.low[i] = make([][]float32, n+1-i), make([]int, n+1-i)
	}
	for length := range n + 1 {
		for i := 0; i+length <= n; i++ {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			row := r.row(i, i+length)
			r.least[i][length] = row
			for r.low[i][length] < len(row) && math.IsInf(float64(row[r.low[i][length]]), 1) {
				r.low[i][length]++
			}
		}
	}
	return r, nil
}

// row computes the row of layers i to l from those of fewer layers.
func (r *Revolve) row(i, l int) []float32 {
	row := make([]float32, r.slots+1)
	for m := range row {
		row[m] = float32(math.Inf(1))
	}
	for w := range r.ways(i, l) {
		from := max(r.ceil(w.need), r.lowest(w.inner, w.innerLess), r.lowest(w.outer, w.outerLess))
		if from > r.slots {
			continue
		}
		out, time := row[from:], float32(w.time)
		inner, outer := r.rest(w.inner, w.innerLess, from), r.rest(w.outer, w.outerLess, from)
		if inner == nil {
			inner, outer = outer, nil
		}
		switch {
		case inner == nil:
			for m := range out {
				out[m] = min(out[m], time)
			}
		case outer == nil:
			fastest(out, inner[:len(out)], time)
		default:
			fastestOfTwo(out, inner[:len(out)], outer[:len(out)], time)
		}
	}
	return row
}

// fastest and fastestOfTwo are where the time goes. A branch that is hardly ever taken is cheaper here than min of floats, which has NaN and -0 to see to.
func fastest(out, a []float32, time float32) {
	for m, t := range a {
		if t += time; t < out[m] {
			out[m] = t
		}
	}
}

func fastestOfTwo(out, a, b []float32, time float32) {
	for m, t := range a {
		if t += time + b[m]; t < out[m] {
			out[m] = t
		}
	}
}

// rest is the row of a part of a way, from the slots on that are left of from and as long as the way's; nil for no part.
func (r *Revolve) rest(p part, less int64, from int) []float32 {
	if p == nothing {
		return nil
	}
	shift := r.ceil(less)
	return r.least[p.first][p.last-p.first][from-shift : r.slots+1-shift]
}

// lowest is how many slots a part needs, with those that are not left for it.
func (r *Revolve) lowest(p part, less int64) int {
	if p == nothing {
		return 0
	}
	return r.low[p.first][p.last-p.first] + r.ceil(less)
}

// ceil is so many bytes in slots.
func (r *Revolve) ceil(bytes int64) int {
	return int(min((bytes+r.unit-1)/r.unit, math.MaxInt32))
}

// Ops is the fastest plan under a limit, at most that of the table; false is that there is none.
func (r *Revolve) Ops(limit int64) ([]Op, bool) {
	if limit < r.chain.Input {
		return nil, false
	}
	m := int(min((limit-r.chain.Input)/r.unit, int64(r.slots)))
	n := len(r.chain.Layers)
	if math.IsInf(float64(r.least[0][n][m]), 1) {
		return nil, false
	}
	var w sequence
	r.write(&w, part{0, n}, m)
	return w.ops, true
}

// write writes the operations of the best way.
func (r *Revolve) write(out *sequence, p part, m int) {
	if p == nothing {
		return
	}
	var best way
	least := float32(math.Inf(1))
	for w := range r.ways(p.first, p.last) {
		if m < r.ceil(w.need) {
			continue
		}
		time := float32(w.time)
		for _, rest := range [][]float32{r.rest(w.inner, w.innerLess, m), r.rest(w.outer, w.outerLess, m)} {
			if rest != nil {
				time += rest[0]
			}
		}
		if time < least {
			best, least = w, time
		}
	}
	out.keep(p.first, best.at)
	switch {
	case best.save:
		out.save(best.at, best.at+1)
	case p.first == len(r.chain.Layers):
		out.loss()
	}
	r.write(out, best.inner, m-r.ceil(best.innerLess))
	if best.save {
		out.backward(best.at, best.at+1)
	}
	r.write(out, best.outer, m-r.ceil(best.outerLess))
}
