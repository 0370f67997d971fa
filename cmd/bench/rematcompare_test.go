package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/remat/baselines"
	"penstock.example/torch"
)

// tinyNetworks have skips over several layers, batch norms in place, a target for each token, and
// dropout.
var tinyNetworks = []network{
	{Model: "unet", Options: models.Options{Depth: 2, Convolutions: 1, Width: 8, Size: 32, Classes: 3, Dropout: 0.1}, Batch: 4},
	{Model: "densenet121", Options: models.Options{Width: 4, Size: 64, Classes: 5}, Batch: 4},
	{Model: "gpt", Options: models.Options{Width: 32, Depth: 3, Heads: 2, Context: 16, Classes: 11, Dropout: 0.1}, Batch: 4},
	{Model: "resnet20", Options: models.Options{Width: 8, Channels: 1, Size: 16}, Batch: 4},
}

// TestNetworksAreSound: each can be built and has a batch, and short runs have some to take.
func TestNetworksAreSound(t *testing.T) {
	quick := 0
	for _, n := range networks {
		torchtest.Check(t)
		c := torch.NewCtx(torch.Options{Seed: 1})
		input, target, err := n.batch(c)
		if err != nil {
			t.Fatalf("%s: %v", n.Model, err)
		}
		if input.Size(0) != n.Batch || target.Size(0) != n.Batch {
			t.Errorf("%s: %v and %v in a batch of %d", n.Model, input, target, n.Batch)
		}
		c.Close()
		if n.quick {
			quick++
		}
	}
	if quick == 0 || len(networks) < 6 {
		t.Errorf("%d networks, %d of them quick", len(networks), quick)
	}
}

// TestCompare: peaks are as predicted, to the byte, and no best plan holds more than what it is
// compared with.
func TestCompare(t *testing.T) {
	for _, n := range tinyNetworks {
		t.Run(n.Model, func(t *testing.T) {
			torchtest.Check(t)
			r, err := n.compare(context.Background(), effort{profile: 1, steps: 2})
			if err != nil {
				t.Fatal(err)
			}
			least := r.None.Peak
			for _, p := range r.Points {
				least = min(least, p.Theirs.Peak)
				for _, one := range []planResult{r.None, p.Theirs, p.Best} {
					if one.Peak != one.PredictedPeak || one.Peak <= r.Base || one.Step.Min <= 0 || one.PredictedStep <= 0 {
						t.Errorf("%s %d: %+v", p.Strategy, p.Segments, one)
					}
				}
				if p.Best.Peak > p.Theirs.Peak || p.Best.PredictedStep > p.Theirs.PredictedStep*(1+1e-9) || p.Bound > p.Best.PredictedStep*(1+1e-9) {
					t.Errorf("%s %d: %+v", p.Strategy, p.Segments, p)
				}
			}
			if last := r.Points[len(r.Points)-1]; last.Strategy != "all" || least == r.None.Peak || len(r.Points) < 2 {
				t.Errorf("%d points, the last %s, the least %d bytes of %d", len(r.Points), last.Strategy, least, r.None.Peak)
			}
			if segments := len(r.Points) - 1 + len(r.Skipped); segments < 2 {
				t.Errorf("%d layers in %d numbers of segments: %+v", r.Layers, segments, r)
			}
		})
	}
}

// TestStepperIsPlainTraining: losses and gradients by any plan are those of the plain loop, to the
// bit.
func TestStepperIsPlainTraining(t *testing.T) {
	for _, n := range tinyNetworks {
		t.Run(n.Model, func(t *testing.T) {
			torchtest.Check(t)
			s, err := newStepper(context.Background(), n, torch.CPU(0), 1)
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			nn.ZeroGrads(s.model)
			c := torch.NewCtx(torch.Options{Threads: 1})
			c.SetGrad(true)
			x := s.model.Forward(nn.NewCtx(c, nn.Config{Training: true, Seed: stepSeed}), s.input)
			loss := s.loss.Forward(nn.NewCtx(c, nn.Config{Training: true, Seed: stepSeed}), x, s.target)
			c.Backward([]*torch.Tensor{loss}, []*torch.Tensor{nil}, false)
			want := s.digest(taken{loss: torch.Item[float32](loss)})
			c.Close()
			layers := len(s.chain.Layers)
			half, err := baselines.Sequential(layers, 2)
			if err != nil {
				t.Fatal(err)
			}
			for name, ops := range map[string][]remat.Op{"none": baselines.None(layers), "all": baselines.All(layers), "halves": half} {
				got, err := s.step(ops)
				if err != nil {
					t.Fatal(err)
				}
				if s.digest(got) != want {
					t.Errorf("%s: another loss, %v, or other gradients", name, got.loss)
				}
			}
		})
	}
}

// TestContenders: a device that may hold a byte less than a plan needs refuses, and a plan of other
// gradients is an error.
func TestContenders(t *testing.T) {
	torchtest.Check(t)
	s, err := newStepper(context.Background(), tinyNetworks[0], torch.CPU(0), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	c := comparison{stepper: s}
	ops := baselines.All(len(s.chain.Layers))
	first, err := c.contender(context.Background(), ops, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.contender(context.Background(), ops, first.result.Peak, 1); err != nil {
		t.Errorf("with as many bytes as it needs: %v", err)
	}
	if _, err := c.contender(context.Background(), ops, first.result.Peak-1, 1); !errors.Is(err, torch.ErrOutOfMemory) {
		t.Errorf("with a byte less: %v", err)
	}
	if _, err := c.solve(context.Background(), s.base+1); err == nil || !strings.Contains(err.Error(), fmt.Sprint(s.base)) {
		t.Errorf("a plan with a byte: %v", err)
	}
	c.digest[0]++
	if _, err := c.contender(context.Background(), ops, 0, 1); err == nil || !strings.Contains(err.Error(), "gradients") {
		t.Errorf("other gradients: %v", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if _, err := first.round(ctx, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("a round after the end: %v", err)
	}
}

// TestNewStepperRefuses: what cannot be made leaves nothing behind.
func TestNewStepperRefuses(t *testing.T) {
	torchtest.Check(t)
	for _, n := range []network{{Model: "resnet21", Batch: 1}, {Model: "resnet18", Options: models.Options{Context: 3}, Batch: 1}} {
		if _, err := newStepper(context.Background(), n, torch.CPU(0), 1); err == nil {
			t.Errorf("%+v can be made", n)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if _, err := newStepper(ctx, tinyNetworks[0], torch.CPU(0), 1); !errors.Is(err, context.Canceled) {
		t.Errorf("measured after the end: %v", err)
	}
	if live := torch.CPU(0).Memory().Live; live != 0 {
		t.Errorf("%d bytes are left", live)
	}
}

func TestRematTargets(t *testing.T) {
	exact := planResult{Peak: 100, PredictedPeak: 100, Step: spread{100, 90, 110}, PredictedStep: 97}
	r := &rematResult{
		Solver: []solverResult{
			{Layers: 50, Limit: 0.3, Table: spread{Median: 99}}, {Layers: 100, Limit: 0.3, Table: spread{Median: 30}},
			{Layers: 339, Limit: 0.3, Table: spread{Median: 2000}, TableBytes: spread{Max: 150e6}},
		},
		Networks: []networkResult{{None: exact, Points: []rematPoint{{Strategy: "sequential", Theirs: exact, Best: exact}}}},
		Gain:     0.15,
	}
	met := func() (out []bool) {
		for _, x := range r.targets() {
			out = append(out, x.Met)
		}
		return out
	}
	// A table of 100 layers, one of 339, its bytes, peaks as predicted, none above the limit, time
	// as predicted, gain.
	if got, want := met(), []bool{true, false, true, true, true, true, true}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	best := &r.Networks[0].Points[0].Best
	best.Peak, best.PredictedStep, r.Gain = 101, 94, 0.09
	if got, want := met(), []bool{true, false, true, false, false, false, false}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
