package solver

import (
	"context"
	"math"
	"math/bits"
	"slices"
)

// steps is Opt(i, l, m) for all intervals of layers and all m, exactly: one front for each interval.
// Both intervals after a sweep get their bytes from the same m, so a front is a minimum of sums of two
// fronts. It has few breakpoints if the chain is short, or its layers are alike.
type steps struct {
	t      *terms
	b      *bounds
	fronts []front // at i*(n+1)+l

	// prices are the prices of the layers before i without gradients. The lowest bits of a price count
	// forwards, so that of two equally fast plans the one with fewer recomputations is cheaper. The
	// other bits are time, in units of a power of two microseconds. So sums are exact, and a float64
	// holds any price.
	prices  []int64
	counter int     // the number of lowest bits
	unit    float64 // microseconds
}

// newSteps computes all fronts. It returns nil if it expects to look at more than visits breakpoints,
// and ctx.Err() when ctx ends first.
func newSteps(ctx context.Context, t *terms, b *bounds, visits int64) (*steps, error) {
	w := t.n + 1
	s := &steps{t: t, b: b, fronts: make([]front, w*w)}
	s.price()
	var e envelope
	for l := range w {
		for i := l; i >= 0; i-- {
			e.clear()
			s.begin(&e, i, l)
			s.fronts[i*w+l] = slices.Clone(e.best)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		// The work grows with the fourth or fifth power of the layers, so a share above the square of the
		// layers' share will not end in time.
		if share := float64(l+1) / float64(w); float64(e.visits) > float64(visits)*share*share {
			return nil, nil
		}
	}
	return s, nil
}

// begin adds the ways to begin (i, l) to an empty envelope; all fronts within (i, l) are known.
func (s *steps) begin(e *envelope, i, l int) {
	t, w := s.t, s.t.n+1
	if i == l {
		e.add(free, 0, free, 0, 0, t.saving(i, l))
		return
	}
	e.add(s.fronts[(i+1)*w+l], t.saved[i], free, 0, 0, t.saving(i, l))
	for j := i + 1; j <= l; j++ {
		e.add(s.fronts[j*w+l], t.kept(i, j), s.fronts[i*w+j-1], t.weights(j, l), s.prices[j]-s.prices[i],
			t.sweeping(i, j, l))
	}
}

func (s *steps) price() {
	n := s.t.n
	s.counter = bits.Len(uint(n * (n + 1) / 2)) // a plan runs layer i at most i+1 times without gradients
	_, exponent := math.Frexp(max(s.t.nograd[n], math.Ldexp(1, -900)))
	s.unit = math.Ldexp(1, exponent+bits.Len(uint(n))+s.counter-53)
	s.prices = make([]int64, n+1)
	for i := range n {
		time := math.Round((s.t.nograd[i+1] - s.t.nograd[i]) / s.unit)
		s.prices[i+1] = s.prices[i] + int64(time)<<s.counter + 1
	}
}

// microseconds is the time of a price.
func (s *steps) microseconds(price int64) float64 { return float64(price>>s.counter) * s.unit }

// path returns the plan of the whole chain with m bytes without x(0), which must have one. Among equally
// fast plans it has the fewest recomputations, and then the least peak.
func (s *steps) path(m int64) *path {
	p, whole := newPath(s.t), s.fronts[s.t.n]
	p.write(s.b, s, 0, s.t.n, whole[whole.upTo(m)-1].bytes)
	return p
}

func (s *steps) at(i, l int, m int64) float64 { return s.fronts[i*(s.t.n+1)+l].at(m) }

func (s *steps) nograd(i, j int) float64 { return float64(s.prices[j] - s.prices[i]) }

// at returns the price of a number of bytes.
func (f front) at(bytes int64) float64 {
	k := f.upTo(bytes)
	if k == 0 {
		return math.Inf(1)
	}
	return float64(f[k-1].price)
}
