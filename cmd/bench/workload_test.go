package main

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"penstock.example/internal/torchtest"
	"penstock.example/models"
)

var brief = effort{profile: 1, rounds: 2, round: time.Nanosecond}

// tiny workloads of all kinds of models.
var (
	tinyText  = workload{Model: "gpt", Options: models.Options{Width: 8, Depth: 2, Heads: 2, Context: 4}, Batch: 2, Chunks: 2, Checkpoint: "never"}
	tinyCells = workload{Model: "amoebanetd", Options: models.Options{Depth: 3, Width: 8, Size: 32}, Batch: 4, Chunks: 2, Checkpoint: "always"}
	tinySkips = workload{Model: "unet", Options: models.Options{Depth: 2, Convolutions: 1, Width: 4, Size: 16}, Batch: 3, Chunks: 3, Checkpoint: "except_last"}
)

func TestShapes(t *testing.T) {
	for _, row := range []struct {
		workload workload
		want     shapes
	}{
		{workload{Model: small}, shapes{Input: []int64{6, 64}, Target: []int64{6, 64}}},
		{workload{Model: mlp}, shapes{Input: []int64{6, 1024}, Target: []int64{6, 1024}}},
		{tinyText, shapes{Input: []int64{6, 4}, Target: []int64{6, 256, 4}, Tokens: 256}},
		{tinyCells, shapes{Input: []int64{6, 3, 32, 32}, Target: []int64{6, 1000}}},
		{tinySkips, shapes{Input: []int64{6, 3, 16, 16}, Target: []int64{6, 1, 16, 16}}},
	} {
		got, err := row.workload.shapes(6)
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(got) != fmt.Sprint(row.want) {
			t.Errorf("%s: got %v, want %v", row.workload.Model, got, row.want)
		}
	}
}

// Every workload can be built, has shapes, an input of which micro-batches are even, and the policy
// that it names.
func TestWorkloadsAreSound(t *testing.T) {
	for _, w := range workloads {
		if _, err := w.build(); err != nil {
			t.Error(err)
		}
		if _, err := w.shapes(w.Batch); err != nil {
			t.Error(err)
		}
		if w.Batch%int64(w.Chunks) != 0 {
			t.Errorf("%s: %d samples in %d micro-batches", w.Model, w.Batch, w.Chunks)
		}
		if _, err := w.Checkpoint.Stages(1); err != nil {
			t.Error(err)
		}
	}
}

func TestBubbleBound(t *testing.T) {
	for _, row := range []struct {
		microBatches, stages int
		want                 float64
	}{{8, 1, 1}, {1, 2, 1}, {4, 2, 0.625}, {8, 4, 0.34375}} {
		if got := bubbleBound(row.microBatches, row.stages); got != row.want {
			t.Errorf("%d micro-batches, %d stages: got %v, want %v", row.microBatches, row.stages, got, row.want)
		}
	}
}

func TestWorkload(t *testing.T) {
	for _, w := range []workload{tinyText, tinyCells, tinySkips} {
		t.Run(w.Model, func(t *testing.T) {
			torchtest.Check(t)
			r, err := w.measure(context.Background(), brief, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Pipes) != len(stageCounts) || r.Parameters == 0 {
				t.Fatalf("got %+v", r)
			}
			for i, p := range r.Pipes {
				layers := 0
				for _, n := range p.Balance {
					layers += n
				}
				if n := stageCounts[i]; p.Stages != n || len(p.Balance) != n || layers != r.Layers || p.Bound != bubbleBound(w.Chunks, n) {
					t.Errorf("%d stages: %+v", n, p)
				}
				if p.Step.Min <= 0 || p.Throughput.Min <= 0 || p.Ratio.Min <= 0 || slices.Min(p.Peak) <= 0 || len(p.Peak) != p.Stages {
					t.Errorf("%d stages: %+v", p.Stages, p)
				}
				if d := p.Idle; d.Steps < brief.rounds || len(d.Measured) != p.Stages || len(d.Replayed) != p.Stages || len(d.Predicted) != p.Stages || d.ReplayedMS > d.MeasuredMS || slices.Min(d.Measured) < 0 || slices.Max(d.Measured) > 1 {
					t.Errorf("%d stages: %+v", p.Stages, d)
				}
			}
		})
	}
}

func TestAblation(t *testing.T) {
	torchtest.Check(t)
	list, err := tinySkips.ablate(context.Background(), brief)
	if err != nil {
		t.Fatal(err)
	}
	want := variants(nil, allowedCores())
	for i, a := range list {
		if a.Devices != ablatedStages[i] || len(a.Variants) != len(want) {
			t.Errorf("got %+v", a)
		}
		for k, v := range a.Variants {
			if v.Name != want[k].name || len(v.Balance) != a.Devices || len(v.Peak) != a.Devices || len(v.Idle.Measured) != a.Devices || v.Throughput.Min <= 0 || k == 0 && v.Faster != (spread{1, 1, 1}) {
				t.Errorf("%d devices: %+v", a.Devices, v)
			}
		}
	}
}

func TestAlternateStopsWithTheContext(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	c := &counter{stop: stop}
	if _, _, err := alternate(ctx, effort{rounds: 5}, []contestant{c, c}); err == nil || c.rounds != 1 {
		t.Errorf("got %v after %d rounds", err, c.rounds)
	}
}

func TestAlternateLeavesOutWhatFailed(t *testing.T) {
	good, bad := &counter{}, &counter{fail: fmt.Errorf("broken")}
	ms, failures, err := alternate(context.Background(), effort{rounds: 3}, []contestant{bad, good})
	if err != nil || failures[0] != bad.fail || failures[1] != nil || bad.rounds != 1 || !slices.Equal(ms[1], []float64{1, 2, 3}) {
		t.Errorf("got %v, %v, %v", ms, failures, err)
	}
}

// counter is a contestant whose n-th round takes n milliseconds.
type counter struct {
	rounds int
	fail   error
	stop   func()
}

func (c *counter) round(context.Context, time.Duration) (float64, error) {
	c.rounds++
	if c.stop != nil {
		c.stop()
	}
	return float64(c.rounds), c.fail
}
