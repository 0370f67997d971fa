package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// plainPart compares one stage with all cores, and the plan that the planner finds for this machine, with
// plain PyTorch with as many threads.
const plainPart = "plain"

const plainScript = "scripts/plain/bench.py"

// fasterThanPlain is the least that our throughput should be of plain PyTorch's.
const fasterThanPlain = 1

// plainWorkloads are trained on the whole batch at once, unless a plan says something else.
func plainWorkloads() (list []workload) {
	for _, w := range []workload{workloadOf(mlp, 1), workloadOf("gpt", 8), workloadOf("resnet20", 8)} {
		w.Chunks, w.Checkpoint = 1, pipe.Never
		list = append(list, w)
	}
	return list
}

// plainResult is what was measured of a workload.
type plainResult struct {
	Model   string      `json:"model"`
	Batch   int64       `json:"batch"`
	Threads int         `json:"threads"` // of each side
	Theirs  string      `json:"theirs"`  // the version
	BLAS    string      `json:"blas"`    // theirs
	Step    spread      `json:"step_ms"` // theirs
	Ours    []plainSide `json:"ours"`    // one stage first
}

// plainSide is one of our ways to train it.
type plainSide struct {
	How     string `json:"how"`
	Step    spread `json:"step_ms"`
	Faster  spread `json:"faster"`  // our throughput to theirs, round by round
	Cheaper spread `json:"cheaper"` // the same of steps in the same processor time
}

// timed is a trainer whose processor time is measured too.
type timedTrainer struct {
	*trainer
	cpu []float64 // milliseconds of a step, by round
}

func (t *timedTrainer) round(ctx context.Context, length time.Duration) (float64, error) {
	before, steps := processorTime(), t.actions.steps
	ms, err := t.trainer.round(ctx, length)
	t.cpu = append(t.cpu, (processorTime()-before).Seconds()*1e3/float64(max(t.actions.steps-steps, 1)))
	time.Sleep(rest)
	return ms, err
}

// processorTime is that of this process until now.
func processorTime() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// plainPython is a workload in plain PyTorch.
type plainPython struct {
	child   *child
	request plainRequest
	count   int64 // of parameters
	cpu     []float64
}

// plainRequest is what scripts/plain/bench.py asks for.
type plainRequest struct {
	Model string `json:"model"`
	shapes
	Options map[string]any `json:"options"`
	Threads int            `json:"threads"`
	Device  string         `json:"device"`
	Seconds float64        `json:"seconds"`
}

func (p *plainPython) round(_ context.Context, length time.Duration) (float64, error) {
	p.request.Seconds = length.Seconds()
	var answer struct {
		MS         []float64 `json:"ms"`
		CPU        float64   `json:"cpu_ms"`
		Parameters int64     `json:"parameters"`
	}
	if err := p.child.ask(p.request, &answer); err != nil {
		return 0, err
	}
	if answer.Parameters != p.count {
		return 0, fmt.Errorf("%s has %d parameters there, ours %d: %s has another network", p.request.Model, answer.Parameters, p.count, plainScript)
	}
	p.cpu = append(p.cpu, answer.CPU)
	return median(answer.MS), nil
}

// startPlain starts plain PyTorch with the same BLAS kernels as ours.
func startPlain(ctx context.Context, python string) (*child, error) {
	if _, err := os.Stat(plainScript); err != nil {
		return nil, fmt.Errorf("run from the repository's root: %w", err)
	}
	c := &child{name: "plain PyTorch"}
	env := os.Environ()
	if core := torch.BLASCore(); core != "" {
		env = append(env, "OPENBLAS_CORETYPE="+core)
	}
	if err := c.start(ctx, python, []string{"-B", plainScript}, env); err != nil {
		return nil, fmt.Errorf("%w (scripts/setup python installs Debian's torch)", err)
	}
	return c, nil
}

func measurePlain(ctx context.Context, e effort, k *costs, list []workload, threads int) (out []plainResult, err error) {
	c, err := startPlain(ctx, python)
	if err != nil {
		return nil, err
	}
	defer c.stop()
	for _, w := range list {
		r, err := w.besidePlain(ctx, e, k, c, threads)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.Model, err)
		}
		out = append(out, r)
	}
	return out, nil
}

// besidePlain lets our ways to train and theirs take turns.
func (w workload) besidePlain(ctx context.Context, e effort, k *costs, c *child, threads int) (plainResult, error) {
	result := plainResult{Model: w.Model, Batch: w.Batch, Threads: threads, Theirs: c.hello.Torch, BLAS: c.hello.BLAS}
	s, err := w.shapes(w.Batch)
	if err != nil {
		return result, err
	}
	settings, err := w.settings()
	if err != nil {
		return result, err
	}
	sides := []plainSide{{How: fmt.Sprintf("one stage, %d threads", threads)}}
	layers, err := w.layers()
	if err != nil {
		return result, err
	}
	one, err := w.trainer(ctx, pipe.Config{Balance: []int{layers}, Threads: threads}, 0)
	if err != nil {
		return result, err
	}
	defer one.close()
	trainers := []*timedTrainer{{trainer: one}}
	found, err := k.plan(ctx, w, 0, threads)
	if err != nil {
		return result, err
	}
	// A second team of OpenMP's threads for the same would have both sleep where one alone spins: libgomp counts the threads of all teams.
	if len(found.balance) > 1 || found.Threads < threads {
		sides = append(sides, plainSide{How: found.String()})
		planned, err := found.trainer(ctx, 1)
		if err != nil {
			return result, err
		}
		defer planned.close()
		trainers = append(trainers, &timedTrainer{trainer: planned})
	}
	theirs := &plainPython{child: c, count: nn.Count(one.model), request: plainRequest{Model: w.Model, shapes: s, Options: settings, Threads: threads, Device: "cpu"}}
	contestants := []contestant{theirs}
	for _, t := range trainers {
		contestants = append(contestants, t)
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
	result.Step = spreadOf(ms[0])
	for i, t := range trainers {
		ours := ms[1+i]
		sides[i].Step, sides[i].Faster, sides[i].Cheaper = spreadOf(ours), paired(ms[0], ours), paired(theirs.cpu, t.cpu)
	}
	result.Ours = sides
	return result, nil
}

// layers is how many layers a balance of the workload counts.
func (w workload) layers() (int, error) {
	model, err := w.build()
	if err != nil {
		return 0, err
	}
	return len(model.Layers()), nil
}

// cores is how many threads both sides get.
func cores() int { return runtime.NumCPU() }

func (r *report) writePlain(t *table) {
	if len(r.Plain) == 0 {
		return
	}
	p := r.Plain[0]
	t.block(fmt.Sprintf("plain PyTorch %s, %d threads", p.Theirs, p.Threads), "batch", "theirs, ms", "ours", "ms", "ours/theirs", "min-max", "by processor time", "min-max", "their kernels")
	for _, x := range r.Plain {
		for _, o := range x.Ours {
			t.line(x.Model, fmt.Sprint(x.Batch), one(x.Step.Median, "%.1f"), o.How, one(o.Step.Median, "%.1f"), one(o.Faster.Median, "%.2f"), span("%.2f", o.Faster),
				one(o.Cheaper.Median, "%.2f"), span("%.2f", o.Cheaper), x.BLAS)
		}
	}
}

func plainTargets(list []plainResult) (out []target) {
	for _, p := range list {
		out = append(out, atLeast(fmt.Sprintf("%s, %s: throughput to plain PyTorch's", p.Model, p.Ours[0].How), p.Ours[0].Faster.Median, fasterThanPlain))
	}
	return out
}
