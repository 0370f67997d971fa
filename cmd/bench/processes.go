package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"penstock.example/torch"
)

// processesPart compares processes with the threads of one, and with PyTorch's processes.
const processesPart = "processes"

// Targets of the part.
const (
	slowerThanThreads = 1.05 // the most, of a step of processes to one of threads
	lossesApart       = 1e-5 // the most, of ours and PyTorch's
	comparedSteps     = 20   // whose losses are compared
)

// pairing is a workload that both sides train.
type pairing struct {
	exercise
	Modules []int   // the balance that counts the modules of scripts/pipelining/models.py
	Faster  float64 // the least that our throughput should be of PyTorch's
}

// pairings are the workloads under each schedule that PyTorch has too. Both sides cut at the same
// places.
func pairings() (out []pairing) {
	for _, p := range []struct {
		workload
		lr                      float64
		balance, modules        []int
		interleaved, itsModules []int
		faster                  float64
	}{
		{workloadOf(mlp, 8), 100, []int{16, 16}, []int{16, 16}, []int{8, 8, 8, 8}, []int{8, 8, 8, 8}, 1.5},
		{workloadOf("gpt", 8), 1, []int{29, 29}, []int{3, 3}, []int{15, 14, 14, 15}, []int{2, 1, 1, 2}, 1.5},
		{workloadOf("resnet20", 8), 0.001, []int{5, 6}, []int{5, 6}, []int{3, 2, 2, 4}, []int{3, 2, 2, 4}, 1.2},
	} {
		for _, schedule := range []string{gpipe, oneFOneB, "interleaved"} {
			x := exercise{Model: p.Model, Options: p.Options, Batch: p.Batch, Chunks: p.Chunks, Schedule: schedule, Balance: p.balance, LR: p.lr}
			modules := p.modules
			if schedule == "interleaved" {
				x.Balance, modules = p.interleaved, p.itsModules
			}
			out = append(out, pairing{x, modules, p.faster})
		}
	}
	return out
}

// processesResult is what was measured of a pairing.
type processesResult struct {
	Model     string  `json:"model"`
	Schedule  string  `json:"schedule"`
	Batch     int64   `json:"batch"`
	Chunks    int     `json:"chunks"`
	Balance   []int   `json:"balance"`
	Threads   spread  `json:"threads_ms"`
	Processes spread  `json:"processes_ms"`
	Slower    spread  `json:"processes_to_threads"`     // of a step, round by round
	Costlier  spread  `json:"processes_to_threads_cpu"` // the same of processor time
	FirstLoss float64 `json:"first_loss"`
	LastLoss  float64 `json:"last_loss"`
	Theirs    *theirs `json:"pytorch,omitempty"`

	faster float64
}

// theirs is the pairing in PyTorch.
type theirs struct {
	Name    string  `json:"name"`
	BLAS    string  `json:"blas"`
	Step    spread  `json:"step_ms"`
	Faster  spread  `json:"ours"`         // our throughput to theirs, round by round
	Cheaper spread  `json:"ours_cpu"`     // the same of steps in the same processor time
	Apart   float64 `json:"losses_apart"` // the greatest difference of two losses
	Error   string  `json:"error,omitempty"`
}

// athlete is a contestant that a child trains.
type athlete struct {
	child *child
	ask   func(steps int) any // the request
	ms    float64             // of the last round's steps
	cpu   []float64           // processor time in milliseconds of a step, by round
}

func (a *athlete) run(steps int) (trained, error) {
	var out trained
	err := a.child.ask(a.ask(steps), &out)
	a.ms = out.MS
	return out, err
}

// round takes as many steps as fit into the time if they take as long as those before.
func (a *athlete) round(_ context.Context, length time.Duration) (float64, error) {
	steps := max(int(math.Round(length.Seconds()*1e3/a.ms)), 1)
	out, err := a.run(steps)
	a.cpu = append(a.cpu, out.CPU)
	return out.MS, err
}

// measureProcesses starts the processes of both sides for all of its pairings. A chroot of "" is no
// comparison with PyTorch.
func measureProcesses(ctx context.Context, e effort, list []pairing, chroot string) (out []processesResult, err error) {
	threads, err := startMembers(ctx, "threads", 1)
	if err != nil {
		return nil, err
	}
	defer threads.stop()
	processes, err := startMembers(ctx, "processes", exerciseDevices)
	if err != nil {
		return nil, err
	}
	defer processes.stop()
	var other *pipelining
	if chroot != "" {
		if other, err = startPipelining(ctx, chroot, exerciseDevices, torch.KindCPU); err != nil {
			return nil, err
		}
		defer other.stop()
	}
	for _, p := range list {
		r, err := p.measure(ctx, e, threads, processes, other)
		if err != nil {
			return nil, fmt.Errorf("%s, %s: %w", p.Model, p.Schedule, err)
		}
		out = append(out, r)
	}
	return out, nil
}

// measure compares the losses of the first steps, and then the times of further ones.
func (p pairing) measure(ctx context.Context, e effort, threads, processes *child, other *pipelining) (processesResult, error) {
	result := processesResult{Model: p.Model, Schedule: p.Schedule, Batch: p.Batch, Chunks: p.Chunks, Balance: p.Balance, faster: p.Faster}
	ours := func(steps int) any {
		x := p.exercise
		x.Steps = steps
		return x
	}
	all := []*athlete{{child: threads, ask: ours}, {child: processes, ask: ours}}
	if other != nil {
		request, err := other.request(ctx, p.exercise, p.Modules)
		if err != nil {
			return result, err
		}
		all = append(all, &athlete{child: other.child, ask: func(steps int) any {
			r := *request
			r.Steps = steps
			return r
		}})
		result.Theirs = &theirs{Name: other.name, BLAS: other.hello.BLAS}
	}
	var losses [][]float64
	for i, a := range all {
		out, err := a.run(comparedSteps)
		if err == nil && len(out.Losses) != comparedSteps {
			err = fmt.Errorf("%s: %d losses of %d steps", a.child.name, len(out.Losses), comparedSteps)
		}
		if i == 2 && err != nil { // theirs
			result.Theirs.Error = err.Error()
			all = all[:2]
			break
		}
		if err != nil {
			return result, err
		}
		losses = append(losses, out.Losses)
	}
	if apart(losses[0], losses[1]) != 0 {
		return result, fmt.Errorf("the losses of processes are %v, those of threads %v; they must be the same to the bit", losses[1], losses[0])
	}
	result.FirstLoss, result.LastLoss = losses[0][0], losses[0][comparedSteps-1]
	var contestants []contestant
	for _, a := range all {
		contestants = append(contestants, a)
	}
	ms, failures, err := alternate(ctx, e, contestants)
	if err != nil {
		return result, err
	}
	for _, err := range failures {
		if err != nil {
			return result, err
		}
	}
	result.Threads, result.Processes, result.Slower = spreadOf(ms[0]), spreadOf(ms[1]), paired(ms[1], ms[0])
	result.Costlier = paired(all[1].cpu, all[0].cpu)
	if len(all) > 2 {
		t := result.Theirs
		t.Step, t.Faster, t.Apart = spreadOf(ms[2]), paired(ms[2], ms[1]), apart(losses[1], losses[2])
		t.Cheaper = paired(all[2].cpu, all[1].cpu)
	}
	return result, nil
}

// apart is the greatest difference of two losses of the same step; it is infinite if one is NaN.
func apart(a, b []float64) (most float64) {
	for i := range a {
		d := math.Abs(a[i] - b[i])
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		most = max(most, d)
	}
	return most
}

// processesTargets are those of a run's pairings.
func processesTargets(list []processesResult) (out []target) {
	for _, r := range list {
		name := fmt.Sprintf("%s, %s, 2 processes: ", r.Model, r.Schedule)
		out = append(out, atMost(name+"time to that of 2 threads", r.Slower.Median, slowerThanThreads),
			atMost(name+"processor time to that of 2 threads", r.Costlier.Median, slowerThanThreads))
		if r.Theirs == nil {
			continue
		}
		out = append(out, atLeast(name+"throughput to PyTorch's", r.Theirs.Faster.Median, r.faster),
			atLeast(name+"steps to PyTorch's in the same processor time", r.Theirs.Cheaper.Median, r.faster))
		if r.Theirs.Error == "" {
			out = append(out, atMost(name+"losses apart from PyTorch's, 1e-5", r.Theirs.Apart/lossesApart, 1))
		}
	}
	return out
}

func (r *report) writeProcesses(t *table) {
	if len(r.Processes) == 0 {
		return
	}
	t.block("2 processes", "schedule", "batch", "micro-batches", "balance", "losses", "2 threads ms", "2 processes ms", "to threads", "min-max", "processor time", "min-max",
		"PyTorch ms", "ours/theirs", "min-max", "in processor time", "min-max", "losses apart", "its BLAS kernels")
	for _, x := range r.Processes {
		cells := []string{x.Model, x.Schedule, fmt.Sprint(x.Batch), fmt.Sprint(x.Chunks), join("%d", x.Balance), fmt.Sprintf("%.3f to %.3f", x.FirstLoss, x.LastLoss),
			one(x.Threads.Median, "%.1f"), one(x.Processes.Median, "%.1f"), one(x.Slower.Median, "%.2f"), span("%.2f", x.Slower),
			one(x.Costlier.Median, "%.2f"), span("%.2f", x.Costlier)}
		switch o := x.Theirs; {
		case o == nil:
		case o.Error != "":
			cells = append(cells, "failed: "+o.Error)
		default:
			cells = append(cells, one(o.Step.Median, "%.1f"), one(o.Faster.Median, "%.2f"), span("%.2f", o.Faster), one(o.Cheaper.Median, "%.2f"), span("%.2f", o.Cheaper),
				one(o.Apart, "%.1e"), o.BLAS)
		}
		t.line(cells...)
	}
}
