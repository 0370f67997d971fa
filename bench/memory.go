package main

import (
	"context"
	"fmt"
	"math"

	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// recomputed are the workloads, with a larger share of activations than in other parts. No plan
// saves parameters or their gradients.
var recomputed = []workload{
	{Model: "gpt", Options: models.Options{Depth: 8}, Batch: 16},
	{Model: "unet", Options: models.Options{Convolutions: 2, Width: 16, Size: 128, Classes: 4}, Batch: 4},
	{Model: "resnet50", Options: models.Options{Size: 96}, Batch: 8},
	{Model: "vgg11", Options: models.Options{Size: 96, Width: 256, Classes: 10}, Batch: 16},
}

// budgets are values of torch.compile's activation_memory_budget. 1 recomputes nothing.
var budgets = []float64{1, 0.75, 0.5, 0.25, 0.1}

// point is one setting of the opponent's recomputation, and our plan within its measured peak.
type point struct {
	request         map[string]any // "segments" or "budget"
	theirs          answer
	match           match
	predicted, ours int64 // our predicted and measured peak
	failure         error // the opponent's, or that none of our plans fits
}

func (b *bench) measureMemory(ctx context.Context) error {
	list := recomputed
	if b.Quick {
		list = list[:2]
	}
	var apart []float64
	for _, w := range list {
		points, err := b.atEqualPeaks(ctx, w.in(1, pipe.Optimal))
		if err != nil {
			return fmt.Errorf("%s: %w", w.Model, err)
		}
		for _, p := range points {
			if p.failure == nil {
				apart = append(apart, math.Abs(float64(p.predicted-p.ours)))
			}
		}
	}
	b.add(row{What: "our predicted to measured peak, bytes", Value: spreadOf(apart), AtMost: true,
		Conditions: fmt.Sprintf("of %d plans", len(apart))})
	return nil
}

// startMemory starts memory.py with a workload.
func (b *bench) startMemory(ctx context.Context, w workload) (*child, error) {
	model, err := w.build()
	if err != nil {
		return nil, err
	}
	backend := "inductor"
	if b.large && b.device.Kind == torch.KindCPU { // a trial avoids the C++ compiler, which takes minutes
		backend = "aot_eager_decomp_partition"
	}
	request, err := w.request(map[string]any{"device": b.device.String(), "parameters": nn.Count(model),
		"trial": b.Trial.Seconds(), "backend": backend})
	if err != nil {
		return nil, err
	}
	c, err := b.startPython(ctx, "memory.py")
	if err == nil {
		if _, err = c.ask(request); err != nil {
			c.stop()
		}
	}
	return c, err
}

// atEqualPeaks compares a model with both of PyTorch's ways to recompute.
func (b *bench) atEqualPeaks(ctx context.Context, w workload) ([]point, error) {
	x := row{What: w.Model + ", equal peak", Opponent: "checkpoint_sequential", Goal: 1.1}
	c, err := b.startMemory(ctx, w)
	if err != nil {
		return nil, b.fail(x, err)
	}
	defer c.stop()
	list, most := budgets, 12 // about twice the root of the largest number of modules
	if b.Quick {
		list, most = []float64{1, 0.5}, 3
	}
	found, err := c.ask(map[string]any{"sweep": most})
	if err != nil {
		return nil, b.fail(x, err)
	}
	var all []point
	for _, o := range []struct {
		opponent, key string
		values        []float64
	}{{x.Opponent, "segments", found.Segments}, {"torch.compile budget", "budget", list}} {
		points := make([]point, len(o.values))
		for i, value := range o.values {
			points[i].request = map[string]any{o.key: value}
			if err := b.withinPeak(ctx, w, c, &points[i]); err != nil {
				return nil, err
			}
		}
		x.Opponent = o.opponent
		b.addPoints(x, c, points)
		all = append(all, points...)
	}
	return all, nil
}

// withinPeak measures the opponent's peak, then compares our best plan within that peak.
func (b *bench) withinPeak(ctx context.Context, w workload, c *child, p *point) error {
	p.request["seconds"] = 0
	if p.theirs, p.failure = c.ask(p.request); p.failure != nil {
		return nil
	}
	t, err := w.newTrainer(pipe.Config{Threads: b.threads(), Budget: []int64{p.theirs.Peak},
		Devices: []torch.Device{b.device}})
	if err != nil {
		return err
	}
	defer t.close()
	plan, err := t.pipe.PlanFor(ctx, t.batch, nn.MSE())
	if err != nil {
		p.failure = fmt.Errorf("no plan of ours: %w", err)
		return ctx.Err()
	}
	b.device.ResetPeak()
	p.match, err = b.play(ctx, t.round, c.side(p.request))
	p.predicted, p.ours, p.failure = plan.Devices[0].Peak, b.device.Memory().Peak, p.match.Failure
	return err
}

// addPoints adds a row for each point of an opponent, and a row with their geometric mean and
// range.
func (b *bench) addPoints(x row, c *child, points []point) {
	var gains []float64
	sum := 0.0
	for _, p := range points {
		delete(p.request, "seconds")
		one := row{What: x.What, Opponent: fmt.Sprint(x.Opponent, " ", p.request)}
		if p.failure != nil {
			_ = b.fail(one, p.failure) // it is in the report
			continue
		}
		one.Value = p.match.Faster()
		one.Conditions = fmt.Sprintf("%.1f MiB, %.1f ms; theirs %.1f MiB, %.1f ms", mebibytes(p.ours),
			median(p.match.Ours), mebibytes(p.theirs.Peak), median(p.match.Theirs))
		b.add(one)
		gains, sum = append(gains, one.Value.Median), sum+math.Log(one.Value.Median)
	}
	if len(gains) == 0 {
		_ = b.fail(x, fmt.Errorf("none of %d points could be compared", len(points)))
		return
	}
	x.Value = spreadOf(gains)
	x.Value.Median = math.Exp(sum / float64(len(gains)))
	x.Conditions = fmt.Sprintf("mean and range of %d points of %d; %d threads; theirs %d", len(gains),
		len(points), b.threads(), c.last.Threads)
	b.add(x)
}

func mebibytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }
