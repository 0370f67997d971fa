package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// shares of eager PyTorch's peak are limits. They descend: a pipe keeps a plan that still fits.
var shares = []float64{0.75, 0.5, 0.25}

// budget returns torch.compile's activation_memory_budget for a share of the answer's peak.
func (a answer) budget(share float64) float64 {
	live := float64(a.Live) / float64(a.Peak)
	return math.Round(100*max(share-live, 0)/(1-live)) / 100
}

// compileAhead has torch.compile fill its cache for the part "limits".
func (b *bench) compileAhead(ctx context.Context) error {
	list := b.largeWorkloads()
	failed := make([]error, len(list))
	var compiling sync.WaitGroup
	for i, w := range list {
		compiling.Go(func() {
			failed[i] = b.forShares(ctx, w, 1, func(share float64, c *child, all answer) error {
				_, err := c.ask(map[string]any{"budget": all.budget(share), "seconds": 0})
				return err
			})
		})
	}
	compiling.Wait()
	return errors.Join(failed...)
}

// forShares calls f for each share. c is PyTorch's process, which has tried the numbers of
// segments. all has its time and peak without recomputation.
func (b *bench) forShares(ctx context.Context, w workload, segments int,
	f func(share float64, c *child, all answer) error) error {
	c, err := b.startMemory(ctx, w)
	if err != nil {
		return err
	}
	defer c.stop()
	all, err := c.ask(map[string]any{"sweep": segments})
	for _, share := range shares {
		if err == nil {
			err = f(share, c, all)
		}
	}
	return err
}

// measureLimits compares both sides within shares of eager PyTorch's peak.
func (b *bench) measureLimits(ctx context.Context) error {
	for _, w := range b.largeWorkloads() {
		t, err := w.newTrainer(pipe.Config{Threads: b.threads(), Devices: []torch.Device{b.device}})
		if err != nil {
			return err
		}
		err = b.forShares(ctx, w, 8, func(share float64, c *child, all answer) error {
			return b.withinShare(ctx, w, t, share, c, all)
		})
		b.device.SetLimit(0)
		t.close()
		if err != nil {
			return fmt.Errorf("%s: %w", w.Model, err)
		}
	}
	return nil
}

// withinShare compares our best plan within a share with PyTorch's two ways to recompute. If a side
// cannot keep the share, the row says why.
func (b *bench) withinShare(ctx context.Context, w workload, t *trainer, share float64, c *child,
	all answer) error {
	limit := int64(share * float64(all.Peak))
	b.device.SetLimit(limit)
	_, unplanned := t.pipe.PlanFor(ctx, t.batch, nn.MSE())
	for _, x := range []struct {
		name    string
		request map[string]any
	}{
		{"checkpoint_sequential", map[string]any{"within": limit}},
		{"torch.compile budget", map[string]any{"budget": all.budget(share)}},
	} {
		r := row{What: fmt.Sprintf("%s within %.0f %%", w.Model, 100*share), Opponent: x.name, Goal: 1}
		m, err := match{}, unplanned
		b.device.ResetPeak()
		if err == nil {
			m, err = b.play(ctx, t.round, c.side(x.request))
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err = cmp.Or(err, m.Failure); err != nil {
			_ = b.fail(r, err) // it is in the report
			continue
		}
		r.Value = m.Faster()
		ours, theirs := mebibytes(b.device.Memory().Peak), mebibytes(c.last.Peak)
		r.Conditions = fmt.Sprintf("%.1f MiB; ours %.1f MiB, %.1f ms; theirs %.1f MiB, %.1f ms", mebibytes(limit),
			ours, median(m.Ours), theirs, median(m.Theirs))
		b.add(r)
	}
	return nil
}
