package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"slices"
	"time"

	"penstock.example/remat"

	"penstock.example/remat/baselines"
	"penstock.example/torch"
)

// networkResult is what training steps of a network took under plans.
type networkResult struct {
	network
	Size    int          `json:"size"`   // of an image
	Layers  int          `json:"layers"` // of the chain, which checkpoint_sequential cuts into segments, too
	Base    int64        `json:"base_bytes"`
	None    planResult   `json:"none"` // the plan that computes nothing again
	Points  []rematPoint `json:"points"`
	Gain    float64      `json:"gain"`               // mean over checkpoint_sequential's points
	Skipped []int        `json:"dominated_segments"` // numbers of segments that take more time than another without less memory
}

// planResult is a plan that was run. Peaks are of the device: parameters, their gradients, buffers,
// the batch, activations, workspaces.
type planResult struct {
	Peak          int64   `json:"peak_bytes"`
	PredictedPeak int64   `json:"predicted_peak_bytes"`
	Step          spread  `json:"step_ms"` // by round
	PredictedStep float64 `json:"predicted_step_ms"`
}

// rematPoint is a strategy, and the best plan that holds no more than the strategy was measured to.
type rematPoint struct {
	Strategy string     `json:"strategy"` // "sequential" or "all"
	Segments int        `json:"segments,omitempty"`
	Theirs   planResult `json:"theirs"`
	Best     planResult `json:"best"`
	Bound    float64    `json:"bound_ms"` // no plan that holds so much is predicted to take less
	Gain     spread     `json:"gain"`     // of throughput, round by round: 0.2 is six steps where the strategy does five
}

// contender is a plan whose steps are timed in turns with those of others.
type contender struct {
	s      *stepper
	ops    []remat.Op
	result planResult
	first  float64 // milliseconds of the quickest step before the rounds
}

// round takes steps; see contestant.
func (c *contender) round(ctx context.Context, length time.Duration) (float64, error) {
	var ms []float64
	for begin := time.Now(); len(ms) == 0 || time.Since(begin) < length; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		t, err := c.s.step(c.ops)
		if err != nil {
			return 0, err
		}
		c.result.Peak = max(c.result.Peak, t.peak)
		ms = append(ms, t.ms)
	}
	return median(ms), nil
}

// comparison is a network's plans against each other.
type comparison struct {
	*stepper
	digest *[sha256.Size]byte // that all plans have to reach
}

// compare measures a network.
func (n network) compare(ctx context.Context, e effort) (r networkResult, err error) {
	s, err := newStepper(ctx, n, torch.CPU(0), e.profile)
	if err != nil {
		return r, err
	}
	defer s.close()
	c := comparison{stepper: s}
	layers := len(s.chain.Layers)
	r = networkResult{network: n, Size: n.Options.Size, Layers: layers, Base: s.base}
	none, err := c.contender(ctx, baselines.None(layers), 0, warmUps+1)
	if err != nil {
		return r, fmt.Errorf("without recomputation: %w", err)
	}
	sequential, err := c.sweep(ctx, &r)
	if err != nil {
		return r, err
	}
	list := []contestant{none}
	var pairs [][2]*contender
	for i, theirs := range sequential {
		p, err := c.against(ctx, &r.Points[i], theirs)
		if err != nil {
			return r, err
		}
		pairs, list = append(pairs, [2]*contender{theirs, p}), append(list, theirs, p) // next to each other in every round
	}
	ms, failures, err := alternate(ctx, effort{rounds: e.steps}, list)
	for _, failure := range failures {
		if err == nil {
			err = failure
		}
	}
	if err != nil {
		return r, err
	}
	r.None = none.end(ms[0])
	for i, pair := range pairs {
		theirs, best := ms[1+2*i], ms[2+2*i]
		r.Points[i].end(pair, theirs, best)
		r.Gain += r.Points[i].Gain.Median / float64(len(pairs))
	}
	all, err := c.all(ctx)
	r.Points = append(r.Points, all)
	return r, err
}

// warmUps are the steps before the first one that counts.
const warmUps = 2

// contender runs a plan so many times. The device's limit, if there is one, holds meanwhile.
func (c *comparison) contender(ctx context.Context, ops []remat.Op, limit int64, steps int) (*contender, error) {
	out := &contender{s: c.stepper, ops: ops, first: math.Inf(1)}
	var err error
	if out.result.PredictedPeak, out.result.PredictedStep, err = c.predicted(ops); err != nil {
		return nil, err
	}
	c.device.SetLimit(limit)
	defer c.device.SetLimit(0)
	for i := range steps {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		t, err := c.step(ops)
		if err != nil {
			return nil, err
		}
		out.first, out.result.Peak = min(out.first, t.ms), max(out.result.Peak, t.peak)
		if i > 0 {
			continue
		}
		digest := c.stepper.digest(t)
		if c.digest == nil {
			c.digest = &digest
		}
		if digest != *c.digest {
			return nil, fmt.Errorf("the loss or the gradients are not those of training without recomputation")
		}
	}
	return out, nil
}

// sweep runs checkpoint_sequential with 2 to 2 sqrt(layers) segments, as rotor's authors do, and
// keeps those that no other beats in memory and time.
func (c *comparison) sweep(ctx context.Context, r *networkResult) ([]*contender, error) {
	var all []*contender
	for k := 2; k <= min(r.Layers, int(2*math.Sqrt(float64(r.Layers)))); k++ {
		ops, err := baselines.Sequential(r.Layers, k)
		if err != nil {
			return nil, err
		}
		p, err := c.contender(ctx, ops, 0, 1)
		if err != nil {
			return nil, fmt.Errorf("%d segments: %w", k, err)
		}
		all = append(all, p)
	}
	var kept []*contender
	for i, p := range all {
		if slices.ContainsFunc(all, func(q *contender) bool { return q != p && q.result.Peak <= p.result.Peak && q.first <= p.first }) {
			r.Skipped = append(r.Skipped, i+2)
			continue
		}
		kept = append(kept, p)
		r.Points = append(r.Points, rematPoint{Strategy: "sequential", Segments: i + 2})
	}
	return kept, nil
}

// against finds the best plan that holds no more than a strategy's measured peak, and runs it with
// that as the device's limit.
func (c *comparison) against(ctx context.Context, r *rematPoint, theirs *contender) (*contender, error) {
	p, err := c.solve(ctx, theirs.result.Peak)
	if err != nil {
		return nil, err
	}
	r.Bound = p.LowerBound / 1e3
	best, err := c.contender(ctx, p.Ops, theirs.result.Peak, 1)
	if err != nil {
		return nil, fmt.Errorf("the best plan under %d bytes: %w", theirs.result.Peak, err)
	}
	return best, nil
}

// all runs the plan that keeps the input alone, once: it takes as many forwards as there are pairs
// of layers.
func (c *comparison) all(ctx context.Context) (rematPoint, error) {
	r := rematPoint{Strategy: "all"}
	theirs, err := c.contender(ctx, baselines.All(len(c.chain.Layers)), 0, 1)
	if err != nil {
		return r, fmt.Errorf("recomputing all: %w", err)
	}
	best, err := c.against(ctx, &r, theirs)
	if err != nil {
		return r, err
	}
	r.end([2]*contender{theirs, best}, []float64{theirs.first}, []float64{best.first})
	return r, nil
}

// end is the result after the rounds.
func (c *contender) end(ms []float64) planResult {
	c.result.Step = spreadOf(ms)
	return c.result
}

func (r *rematPoint) end(pair [2]*contender, theirs, best []float64) {
	r.Theirs, r.Best = pair[0].end(theirs), pair[1].end(best)
	ratio := paired(theirs, best)
	r.Gain = spread{ratio.Median - 1, ratio.Min - 1, ratio.Max - 1}
}

// asPredicted is the ratio of the predicted time to the measured one, less 1.
func (r planResult) asPredicted() float64 { return r.PredictedStep/r.Step.Median - 1 }
