package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/safetensors"
	"penstock.example/schedule"
	"penstock.example/torch"
)

const (
	comparedSteps = 10   // with an update by SGD after each
	lossesApart   = 1e-5 // the largest allowed difference between the losses of both sides
)

// pairing is a workload in two processes, cut at the same places on both sides. PyTorch's cuts
// count the modules of bench/python/models.py.
type pairing struct {
	workload
	lr          float64
	once, twice cuts // for one and for two stages a process
	goal        float64
}

type cuts struct{ ours, theirs []int }

var pairings = []pairing{
	{mlp, 100, cuts{[]int{16, 16}, []int{16, 16}}, cuts{[]int{8, 8, 8, 8}, []int{8, 8, 8, 8}}, 1.3},
	{gpt, 1, cuts{[]int{29, 29}, []int{3, 3}}, cuts{[]int{15, 14, 14, 15}, []int{2, 1, 1, 2}}, 1.3},
	// Higher rates amplify rounding.
	{resnet20, 0.001, cuts{[]int{5, 6}, []int{5, 6}}, cuts{[]int{3, 2, 2, 4}, []int{3, 2, 2, 4}}, 1.2},
}

func (b *bench) measureProcesses(ctx context.Context) error {
	for _, p := range pairings {
		p.workload = p.in(p.Chunks, pipe.Never)
		for _, name := range []string{"gpipe", "1f1b", "interleaved", "zb-v"} {
			if err := b.besidePipelining(ctx, p, name); err != nil {
				return fmt.Errorf("%s, %s: %w", p.Model, name, err)
			}
		}
	}
	return nil
}

func (b *bench) besidePipelining(ctx context.Context, p pairing, name string) error {
	x := row{What: fmt.Sprintf("%s, 2 processes, %s", p.Model, name), Opponent: "torch pipelining",
		Goal: p.goal, Conditions: "1 thread each"}
	s, err := schedule.Named(name)
	if err != nil {
		return err
	}
	cut := p.once
	if s.Usual() > 1 {
		cut = p.twice
	}
	folder, err := os.MkdirTemp("", "penstock-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	request, err := p.export(folder)
	if err != nil {
		return err
	}
	text, err := json.Marshal(exercise{p.workload, name, cut.ours})
	if err != nil {
		return err
	}
	members, err := b.startPython(ctx, "launch.py", os.Args[0], memberArg, string(text))
	if err != nil {
		return err
	}
	defer members.stop()
	c, err := b.startPython(ctx, "launch.py", "python/pipelining.py")
	if err != nil {
		return b.fail(x, err)
	}
	defer c.stop()
	request["schedule"], request["balance"] = name, cut.theirs
	ours, theirs := training{members, map[string]any{}}, training{c, request}
	mine, err := ours.steps(comparedSteps, p.lr)
	if err != nil {
		return err
	}
	other, err := theirs.steps(comparedSteps, p.lr)
	if apart := difference(mine.Losses, other.Losses); err == nil {
		x.Conditions = fmt.Sprintf("losses differ by %.0e; 1 thread each", apart)
		if !(apart <= lossesApart) || len(other.Losses) != comparedSteps {
			err = fmt.Errorf("%d losses differ by %.1e", len(other.Losses), apart)
		}
	}
	if err != nil {
		return b.fail(x, err)
	}
	return b.compare(ctx, x, ours.side(), c, theirs.side())
}

// training is a process that answers a request for a number of steps.
type training struct {
	*child
	request map[string]any
}

// steps takes n steps. A learning rate of 0 drops the gradients.
func (t training) steps(n int, lr float64) (answer, error) {
	t.request["steps"], t.request["lr"] = n, lr
	return t.ask(t.request)
}

// side returns a side that takes as many steps as fit into the time, judged by the last steps.
func (t training) side() side {
	last := math.Inf(1)
	return func(_ context.Context, length time.Duration) (float64, error) {
		a, err := t.steps(max(int(math.Round(milliseconds(length)/last)), 1), 0)
		last = median(a.MS)
		return last, err
	}
}

// difference returns the greatest difference between losses of the same step, NaN if one is NaN.
func difference(a, b []float64) (most float64) {
	for i := range min(len(a), len(b)) {
		most = math.Max(most, math.Abs(a[i]-b[i]))
	}
	return most
}

// export writes PyTorch's initial weights, buffers, input and target, and returns the request that
// names the files. Members make the same values.
func (p pairing) export(folder string) (map[string]any, error) {
	t, err := p.newTrainer(pipe.Config{Balance: p.once.ours})
	if err != nil {
		return nil, err
	}
	defer t.close()
	weights, batch := filepath.Join(folder, "weights"), filepath.Join(folder, "batch")
	request, err := p.request(map[string]any{"chunks": p.Chunks, "weights": weights, "batch": batch})
	return request, errors.Join(err, nn.Save(weights, t.model), safetensors.WriteFile(batch,
		[]safetensors.Tensor{
			torch.FileTensor("input", t.batch.Input[0].Tensor), torch.FileTensor("target",
				t.batch.Target[0].Tensor),
		}, nil))
}
