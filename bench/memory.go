package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// recomputed have a larger share of activations than the models of other parts: no plan saves
// parameters or their gradients.
var recomputed = []workload{
	{Model: "gpt", Options: models.Options{Depth: 8}, Batch: 16},
	{Model: "unet", Options: models.Options{Convolutions: 2, Width: 16, Size: 128, Classes: 4}, Batch: 4},
	{Model: "resnet50", Options: models.Options{Size: 96}, Batch: 8},
	{Model: "vgg11", Options: models.Options{Size: 96, Width: 256, Classes: 10}, Batch: 16},
}

// budgets are torch.compile's activation_memory_budget. 1 recomputes nothing.
var budgets = []float64{1, 0.75, 0.5, 0.25, 0.1}

// point is a way of the opponent to recompute, beside our plan within its measured peak.
type point struct {
	request         map[string]any // "segments" or "budget"
	theirs          answer
	match           match
	predicted, ours int64 // our peak
	failure         error // theirs, or there is no plan
}

func (b *bench) measureMemory(ctx context.Context) error {
	if err := b.compareCounts(ctx); err != nil {
		return err
	}
	list := recomputed
	if b.Quick {
		list = list[:2]
	}
	apart, plans := int64(0), 0
	for _, w := range list {
		points, err := b.atEqualPeaks(ctx, w.in(1, pipe.Optimal))
		if err != nil {
			return fmt.Errorf("%s: %w", w.Model, err)
		}
		for _, p := range points {
			if p.failure == nil {
				apart, plans = max(apart, p.predicted-p.ours, p.ours-p.predicted), plans+1
			}
		}
	}
	b.add(row{What: "our predicted to measured peak, bytes", Value: spreadOf([]float64{float64(apart)}), Format: "%.0f",
		Goal: 0, AtMost: true, Conditions: fmt.Sprintf("farthest of %d plans", plans)})
	return nil
}

// startMemory starts PyTorch with a workload.
func (b *bench) startMemory(ctx context.Context, w workload) (*child, error) {
	model, err := w.build()
	if err != nil {
		return nil, err
	}
	backend := "inductor"
	if b.large && b.device.Kind == torch.KindCPU { // a trial does without a C++ compiler, which takes minutes
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

// compareCounts has both sides count the bytes of the same model without recomputation.
func (b *bench) compareCounts(ctx context.Context) error {
	w, d := workload{Model: "small", Batch: 256, Chunks: 1, Checkpoint: pipe.Never}, b.device
	t, err := w.newTrainer(pipe.Config{Devices: []torch.Device{d}})
	if err != nil {
		return err
	}
	defer t.close()
	_, err = t.round(ctx, 0)
	live := d.Memory().Live
	d.ResetPeak()
	_, err2 := t.round(ctx, 0)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	ours := d.Memory().Peak
	x := row{What: "peak of a small model, ours - theirs, bytes", Opponent: "PyTorch eager", Format: "%.0f"}
	c, err := b.startMemory(ctx, w)
	if err != nil {
		return b.fail(x, err)
	}
	defer c.stop()
	theirs, err := c.ask(map[string]any{"segments": 1, "seconds": 0})
	if err != nil {
		return b.fail(x, err)
	}
	x.Value = spreadOf([]float64{float64(ours - theirs.Peak)})
	x.Conditions = fmt.Sprintf("%d and %d; between steps %d and %d", ours, theirs.Peak, live, theirs.Live)
	b.add(x)
	return nil
}

// atEqualPeaks compares a model with both ways of PyTorch to recompute.
func (b *bench) atEqualPeaks(ctx context.Context, w workload) ([]point, error) {
	x := row{What: w.Model + ", equal peak", Opponent: "checkpoint_sequential", Goal: 1.1}
	c, err := b.startMemory(ctx, w)
	if err != nil {
		return nil, b.fail(x, err)
	}
	defer c.stop()
	list, most := budgets, 12 // about twice the root of the most modules
	if b.Quick {
		list, most = []float64{1, 0.5}, 3
	}
	found, err := c.ask(map[string]any{"sweep": most})
	if err != nil {
		return nil, b.fail(x, err)
	}
	var segments, shares []point
	for _, k := range found.Segments {
		segments = append(segments, point{request: map[string]any{"segments": k}})
	}
	for _, share := range list {
		shares = append(shares, point{request: map[string]any{"budget": share}})
	}
	for _, points := range [][]point{segments, shares} {
		for i := range points {
			if err := b.withinPeak(ctx, w, c, &points[i]); err != nil {
				return nil, err
			}
		}
	}
	b.addPoints(x, c, segments)
	if x.Opponent, x.Conditions = "torch.compile budget", "; its peak falls with the budget"; !monotone(shares) {
		x.Conditions += ": NO"
	}
	b.addPoints(x, c, shares)
	return slices.Concat(segments, shares), nil
}

// monotone reports whether the peaks do not grow along the points.
func monotone(points []point) bool {
	points = slices.DeleteFunc(slices.Clone(points), func(p point) bool { return p.theirs.Peak == 0 }) // theirs failed
	return slices.IsSortedFunc(points, func(a, b point) int { return int(b.theirs.Peak - a.theirs.Peak) })
}

// withinPeak measures the opponent's peak, and lets our best plan within it alternate with it.
func (b *bench) withinPeak(ctx context.Context, w workload, c *child, p *point) error {
	p.request["seconds"] = 0
	if p.theirs, p.failure = c.ask(p.request); p.failure != nil {
		return nil
	}
	t, err := w.newTrainer(pipe.Config{Threads: b.threads(), Budget: []int64{p.theirs.Peak}, Devices: []torch.Device{b.device}})
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

// addPoints reports the points of an opponent. The row has their geometric mean and range.
func (b *bench) addPoints(x row, c *child, points []point) {
	var gains []float64
	base, sum := 0.0, 0.0 // what the budget 1 holds beside parameters, buffers and batch
	for _, p := range points {
		delete(p.request, "seconds")
		share, _ := p.request["budget"].(float64)
		if share == 1 {
			base = mebibytes(p.theirs.Peak - p.theirs.Live)
		}
		how, byShare := fmt.Sprint(x.Opponent, " ", p.request), mebibytes(p.theirs.Live)+share*base
		if p.failure != nil {
			b.Peaks.add(x.What, how, mebibytes(p.theirs.Peak), byShare, "", lastLine(p.failure.Error()))
			continue
		}
		gain := p.match.Faster()
		gains, sum = append(gains, gain.Median), sum+math.Log(gain.Median)
		b.Peaks.add(x.What, how, mebibytes(p.theirs.Peak), byShare, median(p.match.Theirs), mebibytes(p.ours),
			median(p.match.Ours), p.predicted-p.ours, fmt.Sprintf("%.2f (%.2f-%.2f)", gain.Median, gain.Min, gain.Max))
	}
	if len(gains) == 0 {
		_ = b.fail(x, fmt.Errorf("none of %d points could be compared; the details say why", len(points)))
		return
	}
	x.Value = spreadOf(gains)
	x.Value.Median = math.Exp(sum / float64(len(gains)))
	x.Conditions = fmt.Sprintf("mean and range of %d points of %d; %d threads; theirs %d%s", len(gains), len(points),
		b.threads(), c.last.Threads, x.Conditions)
	b.add(x)
}

func mebibytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }
