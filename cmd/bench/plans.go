package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/planner/search"
	"penstock.example/profile"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// plansPart compares what the planner predicts of a step with what it takes.
const plansPart = "plans"

// plansApart is the most by which a predicted step may differ from the measured one, as a part of it.
const plansApart = 0.05

// plansChunks is the most micro-batches that a workload is measured for.
const plansChunks = 8

// foundPlan is the best plan for a workload on the cores of this machine.
type foundPlan struct {
	*search.Plan
	w       workload
	balance []int // layers of each stage
}

func (f foundPlan) String() string {
	stages := fmt.Sprintf("%d stages", len(f.balance))
	if len(f.balance) == 1 {
		stages = "one stage"
	}
	return fmt.Sprintf("%s, %d threads, %s with %d micro-batches", stages, f.Threads, f.Schedule, f.MicroBatches)
}

// plan measures the workload for micro-batches of several sizes, and for each number of threads that its
// devices may have, and searches. With 0 devices it finds their number too.
func (k *costs) plan(ctx context.Context, w workload, devices, threads int) (out foundPlan, err error) {
	model, err := w.build()
	if err != nil {
		return out, err
	}
	var each []int
	if devices > 0 {
		each = []int{max(threads/devices, 1)}
	} else {
		for n := threads; n >= 1; n /= 2 {
			each = append(each, n)
		}
	}
	var measured search.Profile
	var units []int
	for chunks := 1; chunks <= min(int(w.Batch), plansChunks); chunks *= 2 {
		for _, n := range each {
			if devices < 2 && 2*n > threads && chunks > 2 {
				continue // a device that is alone gains nothing by more micro-batches
			}
			c, err := k.chain(ctx, w, model, w.Batch/int64(chunks), n)
			if err != nil {
				return out, err
			}
			own := slices.Clone(c.Units[c.Prologue:])
			for i := range c.Prologue {
				own[0] += c.Units[i]
			}
			if units == nil {
				units = own
			}
			if slices.Equal(own, units) {
				measured.Measured = append(measured.Measured, search.Measured{Rows: int(w.Batch) / chunks, Threads: n, Chain: c.Chain})
			}
		}
	}
	r, err := search.Search(ctx, measured, search.Machine{Devices: []search.Device{{Name: "cpu", Threads: max(threads, devices)}}}, search.Wishes{Batch: int(w.Batch), Devices: devices})
	if err != nil {
		return out, err
	}
	if r.Best == nil {
		return out, fmt.Errorf("no plan of %d devices: %+v", devices, r.Schedules)
	}
	out.Plan, out.w = r.Best, w
	at := 0
	for _, n := range r.Best.Balance {
		sum := 0
		for _, of := range units[at : at+n] {
			sum += of
		}
		out.balance, at = append(out.balance, sum), at+n
	}
	return out, nil
}

// costs are what was measured of workloads. Each is measured once.
type costs struct {
	repeats int // timed runs of each layer
	known   map[costsOf]profile.Chain
}

type costsOf struct {
	model   string
	rows    int64
	threads int
}

func newCosts(e effort) *costs { return &costs{min(e.profile, 5), map[costsOf]profile.Chain{}} }

// chain is what the workload's units cost on micro-batches of so many rows, with so many threads.
func (k *costs) chain(ctx context.Context, w workload, model *nn.Sequential, rows int64, threads int) (profile.Chain, error) {
	of := costsOf{w.Model, rows, threads}
	if c, known := k.known[of]; known {
		return c, nil
	}
	s, err := w.shapes(rows)
	if err != nil {
		return profile.Chain{}, err
	}
	c := torch.NewCtx(torch.Options{Seed: 7})
	defer c.Close()
	config := profile.Config{Threads: threads, MicroBatches: int(w.Batch / rows), Beside: profile.Others(torch.CPU(0), runtime.NumCPU(), threads), Repeats: k.repeats, Seed: 7, Balance: []int{len(model.Layers())}, Split: true, Loss: nn.MSE(),
		Target: []*torch.Tensor{normal(c, s.Target)}}
	p, err := profile.Measure(ctx, model, config, s.input(c))
	if err != nil {
		return profile.Chain{}, err
	}
	k.known[of] = p.Chains[0]
	return p.Chains[0], nil
}

// trainer is the workload by the plan, on devices from first on.
func (f foundPlan) trainer(ctx context.Context, first int) (*trainer, error) {
	named, err := schedule.Named(f.Schedule)
	if err != nil {
		return nil, err
	}
	workers, err := named.Workers(len(f.Devices), f.Virtual)
	if err != nil {
		return nil, err
	}
	config := pipe.Config{Balance: f.balance, Threads: f.Threads, Schedule: named.Generate, Checkpoint: pipe.Never}
	for _, n := range workers {
		config.Devices = append(config.Devices, torch.CPU(first+n))
	}
	w := f.w
	w.Chunks = f.MicroBatches
	return w.trainer(ctx, config, first)
}

// plannedResult is a plan's step, as it was predicted and as it is.
type plannedResult struct {
	Model     string  `json:"model"`
	Batch     int64   `json:"batch"`
	Devices   int     `json:"devices"`
	Plan      string  `json:"plan"`
	Balance   []int   `json:"balance"`
	Predicted float64 `json:"predicted_ms"`
	Measured  spread  `json:"measured_ms"` // medians of rounds
	// Simulated is the program with the mean times that its actions took in the run, and Mean the mean
	// step of the run: what the simulation is off by, whatever the machine did since the measurement.
	Simulated float64 `json:"simulated_ms"`
	Mean      float64 `json:"mean_ms"`
}

// off is how much longer the predicted step is than the measured one, as a part of it; simulatedOff the same of
// the simulation with the times of the run.
func (p plannedResult) off() float64          { return p.Predicted/p.Measured.Median - 1 }
func (p plannedResult) simulatedOff() float64 { return p.Simulated/p.Mean - 1 }

// measurePlans plans, runs and compares. Two devices have a core each, one has all.
func measurePlans(ctx context.Context, e effort, k *costs, list []workload, threads int) (out []plannedResult, err error) {
	for _, w := range list {
		for _, devices := range []int{1, 2} {
			r, err := w.planned(ctx, e, k, devices, threads)
			if err != nil {
				return nil, fmt.Errorf("%s on %d devices: %w", w.Model, devices, err)
			}
			out = append(out, r)
		}
	}
	return out, nil
}

func (w workload) planned(ctx context.Context, e effort, k *costs, devices, threads int) (plannedResult, error) {
	found, err := k.plan(ctx, w, devices, threads)
	if err != nil {
		return plannedResult{}, err
	}
	t, err := found.trainer(ctx, 0)
	if err != nil {
		return plannedResult{}, err
	}
	defer t.close()
	ms, failures, err := alternate(ctx, e, []contestant{t})
	if err = cmp.Or(err, failures[0]); err != nil {
		return plannedResult{}, err
	}
	i, err := t.actions.idle()
	return plannedResult{Model: w.Model, Batch: w.Batch, Devices: devices, Plan: found.String(), Balance: found.balance,
		Predicted: float64(found.Step) / float64(time.Millisecond), Measured: spreadOf(ms[0]), Simulated: i.PredictedMS, Mean: i.MeasuredMS}, err
}

func (r *report) writePlans(t *table) {
	if len(r.Plans) == 0 {
		return
	}
	t.block("plans", "batch", "the plan", "balance", "predicted ms", "measured ms", "min-max", "off %", "simulated from the run, ms", "mean step", "off %")
	for _, p := range r.Plans {
		t.line(p.Model, fmt.Sprint(p.Batch), p.Plan, join("%d", p.Balance), one(p.Predicted, "%.1f"), one(p.Measured.Median, "%.1f"), span("%.1f", p.Measured), one(100*p.off(), "%+.1f"),
			one(p.Simulated, "%.1f"), one(p.Mean, "%.1f"), one(100*p.simulatedOff(), "%+.1f"))
	}
}

func plansTargets(list []plannedResult) (out []target) {
	for _, p := range list {
		name := fmt.Sprintf("%s, %s", p.Model, p.Plan)
		out = append(out, atMost(name+": predicted step apart from the measured one", math.Abs(p.off()), plansApart),
			atMost(name+": simulated from the run", math.Abs(p.simulatedOff()), plansApart))
	}
	return out
}
