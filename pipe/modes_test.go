package pipe_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// thawing is a model of norms, dropout and a tied parameter, of which parts are frozen, unfrozen and
// set to evaluation between its steps.
func thawing() problem {
	const rows = 6
	body := func(m *nn.Sequential) *nn.Sequential { return m.Slice(0, 6) }
	return problem{
		model: func() *nn.Sequential {
			tied := nn.NewLinear(16, 16)
			return nn.NewSequential(nn.NewLinear(12, 16), nn.NewBatchNorm1d(16, nn.BatchNormConfig{}),
				nn.NewTanh(),
				tied, nn.NewDropout(0.3), nn.NewSequential(nn.NewBatchNorm1d(16,
					nn.BatchNormConfig{}), nn.NewTanh()),
				nn.NewLinear(16, 16), nn.NewGELU(), nn.NewLinearShared(tied.Weight,
					true), nn.NewBatchNorm1d(16, nn.BatchNormConfig{}),
				nn.NewLinear(16, 3))
		},
		loss: nn.CrossEntropy(), input: normal(rows, 12), target: classes(rows, 3), rows: rows, steps: 6,
		before: func(step int, m *nn.Sequential) {
			switch step {
			case 1:
				nn.Freeze(body(m))
			case 2:
				nn.Eval(body(m))
			case 3:
				nn.Unfreeze(m)
			case 4:
				nn.Freeze(m.Slice(0, 3))
				nn.Train(m)
			case 5:
				nn.Freeze(m)
				m.Layers()[11].Layer.(*nn.Linear).Weight.SetTrainable(true)
				nn.Eval(m)
			}
		},
	}
}

// Whatever is frozen and runs as in evaluation between two steps, and however the model is cut and
// recomputed: weights, gradients and running statistics are those of the plain loop.
func TestModesBetweenSteps(t *testing.T) {
	for _, balance := range [][]int{{12}, {5, 7}, {2, 6, 4}} {
		for _, policy := range []pipe.Checkpoint{pipe.Never, pipe.ExceptLast, pipe.Always, pipe.Optimal} {
			for _, deferred := range []bool{false, true} {
				t.Run(fmt.Sprint(balance, policy, deferred), func(t *testing.T) {
					torchtest.Check(t)
					q := thawing()
					q.deferred = deferred
					want := q.plain(3, 1)
					got := q.piped(t, pipe.Config{Balance: balance, Chunks: 3, Checkpoint: policy,
						DeferredBatchNorm: deferred, Seed: 1})
					if d := want.differs(got); d != "" {
						t.Errorf("%s differs from the plain loop", d)
					}
				})
			}
		}
	}
}

// The account of each device sees what is planned, to the byte, after each of the changes.
func TestPredictedPeaksAfterModesChange(t *testing.T) {
	for _, balance := range [][]int{{12}, {5, 7}, {2, 6, 4}} {
		torchtest.Check(t)
		if wrong := thawing().predicted(t,
			onDevices(pipe.Config{Balance: balance, Chunks: 3, Checkpoint: pipe.Optimal,
				Seed: 1})); wrong != "" {
			t.Errorf("%v: %s", balance, wrong)
		}
	}
}

// scaledRun trains for some steps with a scaler, or without one.
func scaledRun(t *testing.T, s *optim.Scaler, autocast torch.Autocast, maxNorm float64) record {
	t.Helper()
	model := small()
	p := started(t, model, onDevices(pipe.Config{Balance: []int{2, 2}, Chunks: 3, Seed: 5,
		Autocast: autocast}))
	q := problem{input: normal(5, 4), target: later(9, normal(5, 3))}
	o := must.Get(optim.SGD(optim.Config{LR: 0.1}))(t)
	c := torch.NewCtx(torch.Options{Threads: 1, Device: aside})
	defer c.Close()
	var losses []float64
	for step := range 3 {
		b := q.batch(c, p.Stages(), step)
		if s != nil {
			b.LossScale = s.Factor()
		}
		result := must.Get(p.Step(context.Background(), b, squares{}))(t)
		losses = append(losses, result.Loss)
		updated, err := true, error(nil)
		switch {
		case s != nil:
			_, updated, err = p.UpdateScaled(context.Background(), o, s, maxNorm)
		case maxNorm > 0:
			_, err = p.UpdateClipped(context.Background(), o, maxNorm)
		default:
			err = p.Update(context.Background(), o)
		}
		if err != nil || !updated {
			t.Fatalf("step %d: updated %v, %v", step, updated, err)
		}
	}
	return snapshot(model, losses, gradient)
}

// A scale changes no bit where nothing underflows or overflows: it is a power of two. With bfloat16
// neither.
func TestScaledTrainingIsTheSame(t *testing.T) {
	torchtest.Check(t)
	for _, autocast := range []torch.Autocast{torch.AutocastOff, torch.AutocastBFloat16} {
		for _, maxNorm := range []float64{0, 0.01} {
			want := scaledRun(t, nil, autocast, maxNorm)
			s := &optim.Scaler{Interval: 2}
			if d := want.differs(scaledRun(t, s, autocast, maxNorm)); d != "" {
				t.Errorf("autocast %v, norm %v: with a scaler another %s", autocast, maxNorm, d)
			}
			if s.Scale != 1<<17 || s.Skipped != 0 {
				t.Errorf("after three updates %+v, want the scale raised once", *s)
			}
		}
	}
}

// ending is a context that ends after its first Err.
type ending struct {
	context.Context
	asked bool
}

func (e *ending) Err() error {
	if e.asked {
		return context.Canceled
	}
	e.asked = true
	return nil
}

// Gradients that are not finite leave the model as it is and are gone, and the scale is halved. At
// the lowest scale that is an error. A context that ends within the update changes nothing.
func TestScalerSkips(t *testing.T) {
	torchtest.Check(t)
	model := small()
	p := started(t, model, onDevices(pipe.Config{Balance: []int{2, 2}, Chunks: 3, Seed: 5}))
	o := must.Get(optim.SGD(optim.Config{LR: 0.1}))(t)
	c := newCtx(t, torch.Options{Threads: 1, Device: aside})
	before := snapshot(model, nil, gradient)
	q := problem{target: later(9, normal(5, 3)), input: func(c *torch.Ctx, step int) *torch.Tensor {
		x := normal(5, 4)(c, step)
		c.Fill_(c.Narrow(x, 0, 4, 1), math.Inf(1))
		return x
	}}
	for _, scale := range []float64{4, 2, 1} {
		s := &optim.Scaler{Scale: scale}
		b := q.batch(c, p.Stages(), 0)
		b.LossScale = s.Factor()
		must.Get(p.Step(context.Background(), b, squares{}))(t)
		_, updated, err := p.UpdateScaled(&ending{Context: context.Background()}, o, s, 0)
		if updated || errors.Is(err, optim.ErrNeverFinite) != (scale == 1) || (err != nil) != (scale == 1) {
			t.Errorf("scale %v: updated %v, %v", scale, updated, err)
		}
		if d := before.differs(snapshot(model, nil, gradient)); d != "" {
			t.Errorf("scale %v: %s has changed", scale, d)
		}
		if s.Scale != max(scale/2, 1) || s.Skipped != 1 {
			t.Errorf("after scale %v: %+v", scale, *s)
		}
	}
	if _, _, err := p.UpdateScaled(context.Background(), o, &optim.Scaler{Scale: 3}, 0); err == nil {
		t.Error("a scale of 3 is accepted")
	}
	nn.ZeroGrads(model)
}

// A failure in either part has its coordinates, and the run is undone: nothing is held, and weights
// have the gradients that they had.
func TestFailureInEitherPartOfABackward(t *testing.T) {
	torchtest.Check(t)
	model := nn.NewSequential(nn.NewLinear(4, 64), nn.NewLinear(64, 64), nn.NewTanh(),
		nn.NewSequential(nn.NewLinear(64, 2), nn.NewTanh()))
	p := started(t, model, pipe.Config{Balance: []int{1, 4}, Chunks: 2, Checkpoint: pipe.Never,
		Schedule: lateWeights})
	c := newCtx(t, torch.Options{Device: torch.CPU(2)})
	b := pipe.Batch{Input: pipe.Rows(normal(8, 4)(c, 0)), Target: pipe.Rows(normal(8, 2)(c, 1))}
	device := torch.CPU(1)
	live := liveBytes(3)
	device.ResetPeak()
	if _, err := p.Step(context.Background(), b, squares{}); err != nil {
		t.Fatal(err)
	}
	peak := device.Memory().Peak
	nn.ZeroGrads(model)
	seen := map[schedule.Kind][]string{}
	for limit := device.Memory().Live + 1; limit < peak; limit += 128 {
		device.SetLimit(limit)
		_, err := p.Step(context.Background(), b, squares{})
		device.SetLimit(0)
		if err == nil { // no copies of the first step's are left to be made
			nn.ZeroGrads(model)
			break
		}
		var e *pipe.Error
		if !errors.As(err, &e) || !errors.Is(err, torch.ErrOutOfMemory) {
			t.Fatalf("limit %d of %d: %v", limit, peak, err)
		}
		for _, q := range nn.Params(model) {
			if q.Tensor().HasGrad() {
				t.Errorf("limit %d, %v: %s kept a gradient", limit, err, q.Name)
			}
		}
		if got := liveBytes(3); got != live {
			t.Fatalf("limit %d, %v: live bytes %v, before %v", limit, err, got, live)
		}
		if e.Stage == 1 && !slices.Contains(seen[e.Direction], e.Layer) {
			seen[e.Direction] = append(seen[e.Direction], e.Layer)
		}
		if e.Direction == schedule.BackwardWeight &&
			!strings.Contains(err.Error(), "backward of the weights: ") {
			t.Errorf("got %v", err)
		}
	}
	for kind, layer := range map[schedule.Kind]string{schedule.BackwardInput: "2",
		schedule.BackwardWeight: "1"} {
		if !slices.Contains(seen[kind], layer) {
			t.Errorf("%v never failed in layer %q; seen %v", kind, layer, seen)
		}
	}
}

// lateWeights is GPipe with the gradients of weights after everything else.
func lateWeights(c schedule.Config) (*schedule.Program, error) {
	p, err := schedule.GPipe(c)
	if err != nil {
		return nil, err
	}
	for w := range p.Workers {
		for i := range p.Workers[w] {
			if a := &p.Workers[w][i]; a.Kind == schedule.Backward {
				a.Kind = schedule.BackwardInput
				weights := *a
				weights.Kind = schedule.BackwardWeight
				p.Workers[w] = append(p.Workers[w], weights)
			}
		}
	}
	return p, nil
}

// The pipe counts its steps itself, so that dropout drops other elements in each. A step that failed
// does not count, nor does a later batch of an update. Batch.Step says another number.
func TestPipeCountsSteps(t *testing.T) {
	torchtest.Check(t)
	c := torchtest.New(t, torch.Options{Device: aside})
	x := c.Randn(64, 4)
	run := func(calls ...func(p *pipe.Pipe, b pipe.Batch) float64) (losses []float64) {
		p := started(t, nn.NewSequential(nn.NewLinear(4, 4), nn.NewDropout(0.3)), pipe.Config{Chunks: 2})
		for _, f := range calls {
			losses = append(losses, f(p, pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(x)}))
		}
		return losses
	}
	step := func(p *pipe.Pipe, b pipe.Batch) float64 {
		return must.Get(p.Step(context.Background(), b, nn.MSE()))(t).Loss
	}
	at := func(n int64) func(p *pipe.Pipe, b pipe.Batch) float64 {
		return func(p *pipe.Pipe, b pipe.Batch) float64 { b.Step = &n; return step(p, b) }
	}
	later := func(p *pipe.Pipe, b pipe.Batch) float64 {
		b.FirstMicroBatch = 2
		return step(p, b)
	}
	failed := func(p *pipe.Pipe, b pipe.Batch) float64 {
		b.Target = pipe.Rows(c.Ones(torch.Float32, 64, 5))
		if _, err := p.Step(context.Background(), b, nn.MSE()); err == nil {
			t.Error("no failure")
		}
		return 0
	}
	want := run(at(0), at(1), at(2))
	if want[0] == want[1] || want[1] == want[2] {
		t.Errorf("equal losses %v", want)
	}
	if got := run(step, step, step); !slices.Equal(got, want) {
		t.Errorf("losses %v, want %v", got, want)
	}
	if got := run(at(1), step); !slices.Equal(got, want[1:]) {
		t.Errorf("after step 1: losses %v, want %v", got, want[1:])
	}
	if got := run(step, failed, later, step); got[2] == want[0] || got[2] == want[1] || got[3] != want[1] {
		t.Errorf("losses %v, want %v after a failure and a later batch of the update", got, want)
	}
}

// A step that gives nothing a gradient fails, and says so.
func TestStepWithoutAGradient(t *testing.T) {
	torchtest.Check(t)
	c := torchtest.New(t, torch.Options{Device: aside})
	x, y := c.Ones(torch.Float32, 4, 4), c.Ones(torch.Float32, 4, 2)
	frozen := func() *nn.Sequential {
		m := nn.NewSequential(nn.NewLinear(4, 4), nn.NewLinear(4, 2))
		nn.Freeze(m)
		return m
	}
	detaching := func() *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(4, 2),
			tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
				return []*torch.Tensor{c.Detach(xs[0])}
			}))
	}
	for name, model := range map[string]func() *nn.Sequential{"frozen": frozen, "detached": detaching} {
		for _, balance := range [][]int{{2}, {1, 1}} {
			for _, policy := range []pipe.Checkpoint{pipe.Never, pipe.Always, pipe.Optimal} {
				p := started(t, model(), pipe.Config{Balance: balance, Chunks: 2, Checkpoint: policy})
				b := pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y)}
				_, err := p.Step(context.Background(), b, nn.MSE())
				b.Target = nil
				run, failed := p.Forward(context.Background(), b)
				if failed == nil {
					failed = run.Backward(context.Background(), y)
				}
				for _, err := range []error{err, failed} {
					if err == nil || !strings.Contains(err.Error(), "the model's output needs no gradient") {
						t.Errorf("%s, %v, %v: %v", name, balance, policy, err)
					}
				}
			}
		}
	}
	p := started(t, frozen(), pipe.Config{Balance: []int{1, 1}})
	x.SetRequiresGrad(true)
	defer x.SetGradOf(nil)
	_, err := p.Step(context.Background(), pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y)}, nn.MSE())
	if err != nil || !x.HasGrad() {
		t.Errorf("for the gradient of the input: %v", err)
	}
}

// With adapters on frozen layers the account of each device sees what is planned, to the byte, also under
// a limit.
func TestPredictedPeaksOfAdapters(t *testing.T) {
	q := planned(t)["adapters"]
	for _, balance := range [][]int{{27}, {11, 16}} {
		torchtest.Check(t)
		cfg := onDevices(pipe.Config{Balance: balance, Chunks: 3, Checkpoint: pipe.Optimal, Seed: 1})
		for range 2 {
			if wrong := q.predicted(t, cfg); wrong != "" {
				t.Errorf("%v: %s", cfg.Budget, wrong)
			}
			for _, d := range must.Get(q.planned(cfg))(t).plans {
				cfg.Budget = append(cfg.Budget, d.Base+(d.Peak-d.Base)*3/4)
			}
		}
	}
}

// Frozen layers before the first adapter keep nothing: with adapters on the last block alone a step takes
// as many bytes with one block before it as with five.
func TestFrozenBlocksKeepNothing(t *testing.T) {
	const rows, dim = 4, 24
	peak := func(t *testing.T, blocks int, layers string, policy pipe.Checkpoint) int64 {
		device, m := torch.CPU(0), nn.NewSequential()
		before := device.Memory().Live
		for i := range blocks {
			m.Add(fmt.Sprint(i), torchtest.TransformerBlock(dim, 2, 0))
		}
		must.Do(t, nn.AddLoRA(m, nn.LoRA{Rank: 2, Alpha: 4, Layers: []string{layers}}))
		p := started(t, m, pipe.Config{Checkpoint: policy})
		c := torch.NewCtx(torch.Options{})
		defer c.Close()
		x := c.Randn(rows, 10, dim)
		for range 2 { // the first step measures, and makes the gradients
			device.ResetPeak()
			_, err := p.Step(context.Background(), pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(x)},
				nn.MSE())
			must.Do(t, err)
		}
		for _, q := range nn.State(m) {
			before += q.Bytes()
		}
		return device.Memory().Peak - before
	}
	for _, policy := range []pipe.Checkpoint{pipe.Never, pipe.Always, pipe.Optimal} {
		torchtest.Check(t)
		two, six := peak(t, 2, "1.*", policy), peak(t, 6, "5.*", policy)
		if two != six {
			t.Errorf("%s: %d bytes with one block before the last, %d with five", policy, two, six)
		}
		if all := peak(t, 6, "*", policy); all <= six {
			t.Errorf("%s: %d bytes with adapters on all blocks, %d on the last", policy, all, six)
		}
	}
}
