package pipe_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/internal/draws"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/planner"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// TestPredictedPeaksOfRandomModels: the account of every device sees what was planned, to the byte, if
// the others are as late as the program lets them: for random models, rows, cuts, placements and
// schedules, also with backwards in two parts, and policies, from the least budgets that will do to
// those under which nothing is recomputed. Where plans are upper bounds (see bound), none is exceeded.
func TestPredictedPeaksOfRandomModels(t *testing.T) {
	torchtest.Check(t)
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.Int64Range(1, 9).Draw(t, "rows")
		kinds := rapid.SliceOfN(anyKind, 1, 10).Draw(t, "layers")
		q := problem{
			model: func() *nn.Sequential { return randomModel(kinds, nn.Checkpointed) }, rows: rows, steps: 1,
			loss: nn.CrossEntropy(), input: normal(rows, 2, 6, 6), target: classes(rows, 3),
			deferred: rapid.Bool().Draw(t, "deferred"), autocast: randomAutocast(t), threads: 1,
		}
		cfg := pipe.Config{Chunks: rapid.IntRange(1, 6).Draw(t, "chunks"), DeferredBatchNorm: q.deferred, Autocast: q.autocast, Threads: 1, Seed: 1}
		randomSchedule(t, &cfg, len(q.model().Layers()))
		cfg.Checkpoint = pipe.Never
		cfg = onDevices(cfg)
		q.randomBudgets(t, &cfg)
		if cfg.Budget == nil {
			return
		}
		if wrong := q.predicted(t, cfg); wrong != "" {
			t.Fatal(wrong)
		}
	})
}

// TestPredictedPeaksOfParts: the backwards of a device free what they may, and what is held for second
// parts of others stays: inputs, outputs, gradients, all of them or none.
func TestPredictedPeaksOfParts(t *testing.T) {
	torchtest.Check(t)
	draws.Checks(t, 20, 100)
	rapid.Check(t, func(t *rapid.T) {
		kinds := rapid.SampledFrom([][]int{{4, 31}, {31, 9, 31}, {8, 31, 9}, {19, 0}, {33, 8, 31}}).Draw(t, "layers")
		q := problem{
			model: func() *nn.Sequential { return randomModel(kinds, nn.Checkpointed) }, rows: 3, steps: 1,
			loss: nn.CrossEntropy(), input: normal(3, 2, 6, 6), target: classes(3, 3), deferred: true, threads: 1,
		}
		cfg := pipe.Config{Chunks: 3, DeferredBatchNorm: q.deferred, Threads: 1, Seed: 1}
		layers := len(q.model().Layers())
		o := order{Seed: rapid.Uint64().Draw(t, "seed"), Parts: true, Balance: []int{layers - 1, 1}, Devices: []int{0, 1}}
		if rapid.Bool().Draw(t, "two stages on a device") {
			first := rapid.IntRange(1, layers-2).Draw(t, "first")
			o.Balance, o.Devices = []int{first, layers - 1 - first, 1}, []int{0, 0, 1}
		}
		o.set(&cfg)
		cfg.Checkpoint = pipe.Never
		cfg = onDevices(cfg)
		if q.randomBudgets(t, &cfg); cfg.Budget == nil {
			return
		}
		if wrong := q.predicted(t, cfg); wrong != "" {
			t.Fatal(wrong)
		}
	})
}

// predicted says where the most bytes of a device are not those that were planned.
func (q problem) predicted(t test, cfg pipe.Config) (wrong string) {
	model := q.model()
	p, err := pipe.New(model, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer nn.Free(model)
	defer p.Close()
	c := torch.NewCtx(torch.Options{Threads: 1, Device: aside})
	defer c.Close()
	for step := range q.steps {
		q.sets(step, model)
		wrong += q.predictedNow(t, p, model, q.batch(c, p.Stages(), step))
	}
	return wrong
}

// predictedNow is predicted of one batch.
func (q problem) predictedNow(t test, p *pipe.Pipe, model *nn.Sequential, b pipe.Batch) (wrong string) {
	plan, err := p.PlanFor(context.Background(), b, q.loss)
	if err != nil {
		t.Fatal(err)
	}
	for at, d := range p.Devices() {
		if plan.Devices[at].Peak == 0 { // with another policy
			continue
		}
		p.Hold(late(plan.Program.Graph(), at))
		d.ResetPeak()
		if _, err := p.Step(context.Background(), b, q.loss); err != nil {
			t.Fatal(err)
		}
		p.Hold(nil)
		nn.ZeroGrads(model)
		if peak, planned := d.Memory().Peak, plan.Devices[at].Peak; peak > planned || planned > peak+bound(plan, at) {
			wrong += fmt.Sprintf("%v: %d bytes, planned %d (%+d)\n", d, peak, planned, planned-peak)
		}
	}
	if wrong != "" {
		wrong += fmt.Sprint(plan)
	}
	return wrong
}

// bound returns by how many bytes the peak of a device may be planned too high: by a twentieth, or a
// few small tensors, if backwards are in two parts.
func bound(plan *planner.Plan, device int) int64 {
	if slices.ContainsFunc(plan.Program.Workers[device], func(a schedule.Action) bool { return a.Kind == schedule.BackwardInput }) {
		return max(plan.Devices[device].Peak/20, 1024)
	}
	return 0
}
