package train_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock.example/group"
	"penstock.example/internal/must"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/profile"
	"penstock.example/torch"
	"penstock.example/train"
)

// fakeClock goes on by a tick whenever it is read, and by what layers take.
type fakeClock struct{ now time.Duration }

func (k *fakeClock) read() time.Duration {
	k.now += time.Microsecond
	return k.now
}

// slow is a layer that takes its time on a clock.
type slow struct {
	nn.Base
	clock *fakeClock
	time  time.Duration
}

func (s *slow) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	s.clock.now += s.time
	return c.MulScalar(x, 1)
}

func TestBalanceByTime(t *testing.T) {
	check(t)
	set, _ := dataset(t)
	clock := &fakeClock{}
	taking := func(d time.Duration) nn.Layer { return &slow{clock: clock, time: d} }
	model := nn.NewSequential(taking(0), taking(0), taking(20*time.Millisecond), taking(0), taking(20*time.Millisecond))
	config := train.BalanceConfig{Stages: 2, Batch: 8, Chunks: 2, Checkpoint: pipe.Always, Profile: profile.Config{Repeats: 1, Clock: clock.read}}
	cut := must.Get(train.BalanceByTime(context.Background(), model, set, config))(t)
	counts, times := cut.Counts, cut.Times
	// The fast layer between the slow ones may go to either side.
	if counts[0]+counts[1] != 5 || counts[0] != 3 && counts[0] != 4 {
		t.Errorf("got %v", counts)
	}
	for stage, s := range times {
		if s.Forward < 0.02 || s.Recomputation != s.Forward || s.Total() < 0.04 {
			t.Errorf("stage %d is to take %+v; its slow layer takes 0.02 s, twice", stage, s)
		}
	}
	if times[1].Activations <= 0 {
		t.Errorf("the second stage receives nothing: %+v", times[1])
	}
	config.Checkpoint = "never,always"
	if cut, err := train.BalanceByTime(context.Background(), model, set, config); err != nil || cut.Times[0].Recomputation != 0 || cut.Times[1].Recomputation != cut.Times[1].Forward {
		t.Errorf("policies of their own: %+v, %v", cut, err)
	}
	for _, change := range []func(c *train.BalanceConfig){
		func(c *train.BalanceConfig) { c.Stages = 6 }, func(c *train.BalanceConfig) { c.Batch = 0 }, func(c *train.BalanceConfig) { c.Chunks = -1 },
	} {
		wrong := config
		change(&wrong)
		if cut, err := train.BalanceByTime(context.Background(), model, set, wrong); err == nil {
			t.Errorf("%+v gives %+v", wrong, cut)
		}
	}
}

// TestBalanceOfSmallBatches: there are no more micro-batches than rows.
func TestBalanceOfSmallBatches(t *testing.T) {
	check(t)
	set, _ := dataset(t)
	clock := &fakeClock{}
	model := nn.NewSequential(&slow{clock: clock}, &slow{clock: clock})
	config := train.BalanceConfig{Stages: 2, Batch: 1, Chunks: 8, Checkpoint: pipe.ExceptLast, Profile: profile.Config{Repeats: 1, Clock: clock.read}}
	cut := must.Get(train.BalanceByTime(context.Background(), model, set, config))(t)
	if cut.Times[0].Recomputation != 0 { // one micro-batch, whose backward comes first
		t.Errorf("%+v", cut.Times[0])
	}
}

// counted is a layer that counts its forwards.
type counted struct {
	nn.Base
	runs *int
}

func (l *counted) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	*l.runs++
	return c.MulScalar(x, 1)
}

// TestMeasuredOnce: what a balance was found by is not measured again for a plan: layers are not
// timed, and only their units' bytes are read.
func TestMeasuredOnce(t *testing.T) {
	check(t)
	set, _ := dataset(t)
	planning := func(known bool, batch int) (runs int) {
		model := nn.NewSequential(nn.NewFlatten(1, -1), nn.NewLinear(16, 8), &counted{runs: &runs}, nn.NewTanh(), nn.NewLinear(8, 3))
		defer nn.Free(model)
		loss := nn.CrossEntropy()
		cut := must.Get(train.BalanceByTime(context.Background(), model, set, train.BalanceConfig{Stages: 2, Batch: 6, Chunks: 3, Checkpoint: pipe.Optimal, Loss: loss, Profile: profile.Config{Repeats: 3}}))(t)
		config := pipe.Config{Balance: cut.Counts, Chunks: 3, Checkpoint: pipe.Optimal}
		if known {
			config.Profile = &cut.Profile
		}
		p := must.Get(pipe.New(model, config))(t)
		defer p.Close()
		runs = 0
		optimizer := must.Get(optim.New("sgd", optim.Config{LR: 0.1}))(t)
		l := train.Loop{Pipe: p, Loss: loss, Optimizer: optimizer}
		must.Do(t, l.PlanMemory(context.Background(), set, batch))
		return runs
	}
	// A sweep runs a layer once for what it saves, three times in each of six passes, and once to
	// give its output on. Several micro-batches in flight take more of these.
	const sweep = 1 + 3*(1+5) + 1
	alone, known, other := planning(false, 6), planning(true, 6), planning(true, 9)
	if known <= 0 || alone < known+sweep {
		t.Errorf("with what is known a layer runs %d times, without %d times; want %d fewer", known, alone, sweep)
	}
	if other < known+sweep {
		t.Errorf("for other micro-batches a layer runs %d times, with what is known %d; want %d more", other, known, sweep)
	}
}

// In a group rank 0 measures, and all have its numbers and its failure.
func TestAGroupIsCutByWhatRankZeroMeasures(t *testing.T) {
	check(t)
	set, _ := dataset(t)
	const device = 5
	var runs [2]int
	cutAll := func() (cuts [2]train.Balance, errs [2]error) {
		members := group.Local(2)
		var wg sync.WaitGroup
		for rank, g := range members {
			wg.Go(func() {
				model := nn.NewSequential(nn.NewFlatten(1, -1), nn.NewLinear(16, 8), &counted{runs: &runs[rank]}, nn.NewTanh(), nn.NewLinear(8, 3))
				cuts[rank], errs[rank] = train.BalanceByTime(t.Context(), model, set, train.BalanceConfig{Stages: 2, Batch: 6, Chunks: 3, Group: g,
					Profile: profile.Config{Repeats: 3, Device: torch.CPU(device)}})
			})
		}
		wg.Wait()
		for _, g := range members {
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		}
		return cuts, errs
	}
	cuts, errs := cutAll()
	if errs[0] != nil || errs[1] != nil || runs[0] == 0 || runs[1] != 0 {
		t.Fatalf("%v; a layer ran %d times", errs, runs)
	}
	if !slices.Equal(cuts[0].Counts, cuts[1].Counts) || cuts[0].Times[0] != cuts[1].Times[0] || cuts[0].Times[1] != cuts[1].Times[1] || cuts[0].Timing != cuts[1].Timing {
		t.Errorf("rank 0 has %+v, rank 1 %+v", cuts[0], cuts[1])
	}
	torch.CPU(device).SetLimit(100)
	defer torch.CPU(device).SetLimit(0)
	if _, errs = cutAll(); !errors.Is(errs[0], torch.ErrOutOfMemory) || !errors.Is(errs[1], torch.ErrOutOfMemory) || !strings.Contains(errs[1].Error(), "rank 0: ") {
		t.Errorf("got %v", errs)
	}
}
