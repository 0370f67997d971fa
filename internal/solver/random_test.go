package solver_test

import (
	"context"
	"flag"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/internal/draws"
	"penstock.example/internal/must"
	. "penstock.example/internal/solver"
	. "penstock.example/remat"
)

var chainCount = flag.Int("chains", draws.Pick(20_000, 200_000),
	"random chains whose plans TestPlansKeepTheirLimits checks")

// TestPlansKeepTheirLimits solves chains of all kinds, exactly and with few slots and many, at one
// limit each, and replays the plans.
func TestPlansKeepTheirLimits(t *testing.T) {
	count := *chainCount
	if testing.Short() || racing {
		count /= 20
	}
	var next atomic.Int64
	var wait sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for !t.Failed() {
				seed := next.Add(1)
				if seed > int64(count) {
					return
				}
				r := rand.New(rand.NewPCG(uint64(seed), 11))
				d := dice{
					layers: 1 + r.IntN(9), bytes: []int64{2, 10, 100, 1e4, 1e9,
						1 << 50}[r.IntN(6)], carries: r.IntN(8), zeros: []float64{0, 0.1, 0.5}[r.IntN(3)],
					weights: r.IntN(2) == 0, zeroTimes: r.IntN(2) == 0, gradientLikeOutputs: r.IntN(3) == 0,
				}
				checkOne(t, d.chain(r), Options{Steps: []int64{0, 100, -1, -1}[r.IntN(4)],
					Slots: []int{1, 2, 10, 50, 500}[r.IntN(5)], Gap: []float64{-1, 0, 0.1}[r.IntN(3)]}, r)
			}
		})
	}
	wait.Wait()
}

// checkOne solves at a limit between a bit below the least and a bit above the greatest, both of
// which come up more often than others.
func checkOne(t *testing.T, c Chain, o Options, r *rand.Rand) {
	least, _, err := Least(c)
	if err != nil {
		t.Error(err)
		return
	}
	greatest := greatestOf(t, c)
	var limit int64
	switch r.IntN(6) {
	case 0:
		limit = least.Peak - 1
	case 1:
		limit = least.Peak
	case 2:
		limit = greatest
	case 3:
		limit = greatest - 1
	default:
		limit = least.Peak + r.Int64N(greatest-least.Peak+1)
	}
	if limit <= 0 {
		return
	}
	p, err := Solve(context.Background(), c, limit, o)
	if err != nil {
		t.Error(err)
		return
	}
	if err := CheckPlan(c, p); err != nil {
		t.Errorf("limit %d of %+v: %v", limit, c, err)
	}
	switch {
	case p.Feasible != (limit >= least.Peak):
		t.Errorf("limit %d of %+v: feasible %v; the least is %d", limit, c, p.Feasible, least.Peak)
	case !p.Feasible && p.Peak != least.Peak:
		t.Errorf("limit %d of %+v: not feasible, peak %d; the least is %d", limit, c, p.Peak, least.Peak)
	case limit >= greatest && (p.Peak != greatest || len(p.Ops) != 2*len(c.Layers)+1):
		t.Errorf("limit %d of %+v: peak %d, %d operations; want no recomputation", limit, c, p.Peak,
			len(p.Ops))
	case p.Feasible && p.LowerBound < 0.999*c.Once():
		t.Errorf("limit %d of %+v: bound %v; everything once takes %v", limit, c, p.LowerBound, c.Once())
	}
}

// TestSolveAgreesWithTheRecurrence compares with the recurrence itself, by recursion over bytes, on
// chains that are too long to list all plans of.
func TestSolveAgreesWithTheRecurrence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		d := dice{
			layers: rapid.IntRange(1, 12).Draw(t, "layers"), bytes: rapid.Int64Range(2, 60).Draw(t,
				"bytes"), carries: rapid.IntRange(0, 6).Draw(t, "carries"),
			zeros: 0.1, weights: rapid.Bool().Draw(t, "weights"), gradientLikeOutputs: rapid.Bool().Draw(t,
				"like outputs"),
		}
		c := d.chain(r)
		least, _, err := Least(c)
		must.Do(t, err)
		greatest := greatestOf(t, c)
		limit := rapid.Int64Range(max(least.Peak, 1), max(greatest, 1)).Draw(t, "limit")
		p := must.Get(Solve(context.Background(), c, limit,
			Options{Gap: 1e-12, Steps: rapid.SampledFrom([]int64{0, -1}).Draw(t, "steps"),
				Slots: rapid.SampledFrom([]int{3, 20, 500}).Draw(t, "slots")}))(t)
		must.Do(t, CheckPlan(c, p))
		want := c.Once() + newRecursion(c).extra(0, d.layers, limit-c.Input)
		if p.Time != want || p.LowerBound > want || p.LowerBound < want*(1-1e-5) {
			t.Fatalf("limit %d of %+v: %v, bound %v; want %v", limit, c, p.Time, p.LowerBound, want)
		}
	})
}

// recursion is the recurrence of the package, for few bytes.
type recursion struct {
	c    Chain
	memo map[[2]int]map[int64]float64
}

func newRecursion(c Chain) *recursion { return &recursion{c, map[[2]int]map[int64]float64{}} }

// kept is a(i, j), gradient |y(i)|, weights G(k, l).
func (r *recursion) kept(i, j int) int64 {
	bytes := r.c.Layers[j-1].Output
	for _, k := range r.c.Carries {
		if k.From >= i && k.From < j-1 && k.To >= j {
			bytes += k.Bytes
		}
	}
	return bytes
}

func (r *recursion) made(i int) int64 {
	if i == 0 {
		return r.c.InputGradient
	}
	return r.c.Layers[i-1].Gradient
}

func (r *recursion) gradient(i int) int64 {
	if i > len(r.c.Layers) {
		return 0
	}
	bytes := r.made(i)
	for _, k := range r.c.GradientCarries {
		if k.To > i && i > k.From {
			bytes += k.Bytes
		}
	}
	return bytes
}

func (r *recursion) weights(k, l int) (bytes int64) {
	for i := k; i <= min(l, len(r.c.Layers)-1); i++ {
		bytes += r.c.Layers[i].WeightGradient
	}
	return bytes
}

// extra is Opt(i, l, m).
func (r *recursion) extra(i, l int, m int64) float64 {
	if m < 0 {
		return math.Inf(1)
	}
	memo := r.memo[[2]int{i, l}]
	if memo == nil {
		memo = map[int64]float64{}
		r.memo[[2]int{i, l}] = memo
	}
	if v, ok := memo[m]; ok {
		return v
	}
	best := math.Inf(1)
	n := len(r.c.Layers)
	if i == n {
		if m >= r.gradient(n)+r.c.Loss.Tmp {
			best = 0
		}
		memo[m] = best
		return best
	}
	layer := r.c.Layers[i]
	if m >= r.gradient(l+1)+layer.Saved+layer.ForwardTmp && m >= r.gradient(i+1)+layer.Saved+r.made(i)+
		r.weights(i, l)+layer.BackwardTmp-layer.BackwardEarly {
		best = 0
		if i < l {
			best = r.extra(i+1, l, m-layer.Saved)
		}
	}
	time := 0.0
	for j := i + 1; j <= l; j++ {
		last := r.c.Layers[j-1]
		before := int64(0)
		if j-1 > i {
			before = r.kept(i, j-1)
		}
		if m < r.gradient(l+1)+before+last.Output+last.ForwardNoGradTmp {
			break
		}
		time += last.ForwardNoGrad
		best = min(best, time+r.extra(j, l, m-r.kept(i, j))+r.extra(i, j-1, m-r.weights(j, l)))
	}
	memo[m] = best
	return best
}

// greatestOf is the peak of the plan that recomputes nothing.
func greatestOf(t must.T, c Chain) int64 {
	t.Helper()
	return must.Get(Check(c, None(len(c.Layers))))(t).Peak
}
