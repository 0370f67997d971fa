package train_test

import (
	"context"
	"testing"
	"time"

	"penstock/nn"
	"penstock/pipe"
	"penstock/profile"
	"penstock/torch"
	"penstock/train"
)

// slow is a layer that takes its time.
type slow struct {
	nn.Base
	time time.Duration
}

func (s *slow) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	time.Sleep(s.time)
	return c.MulScalar(x, 1)
}

func TestBalanceByTime(t *testing.T) {
	check(t)
	set, _ := dataset(t)
	model := nn.NewSequential(&slow{}, &slow{}, &slow{time: 20 * time.Millisecond}, &slow{}, &slow{time: 20 * time.Millisecond})
	config := train.BalanceConfig{Stages: 2, Batch: 8, Chunks: 2, Checkpoint: pipe.Always, Profile: profile.Config{Repeats: 1}}
	counts, times, err := train.BalanceByTime(context.Background(), model, set, config)
	if err != nil {
		t.Fatal(err)
	}
	// The fast layer between the slow ones may go to either side.
	if counts[0]+counts[1] != 5 || counts[0] != 3 && counts[0] != 4 {
		t.Errorf("got %v", counts)
	}
	for stage, s := range times {
		if s.Forward < 0.02 || s.Recomputation != s.Forward || s.Total() < 0.04 {
			t.Errorf("stage %d is to take %+v; its slow layer sleeps 0.02 s, twice", stage, s)
		}
	}
	if times[1].Activations <= 0 {
		t.Errorf("the second stage receives nothing: %+v", times[1])
	}
	config.Checkpoints = []pipe.Checkpoint{pipe.Never, pipe.Always}
	if _, times, err := train.BalanceByTime(context.Background(), model, set, config); err != nil || times[0].Recomputation != 0 || times[1].Recomputation != times[1].Forward {
		t.Errorf("policies of their own: %+v, %v", times, err)
	}
	for _, change := range []func(c *train.BalanceConfig){
		func(c *train.BalanceConfig) { c.Stages = 6 }, func(c *train.BalanceConfig) { c.Batch = 0 }, func(c *train.BalanceConfig) { c.Chunks = -1 },
	} {
		wrong := config
		change(&wrong)
		if counts, _, err := train.BalanceByTime(context.Background(), model, set, wrong); err == nil {
			t.Errorf("%+v gives %v", wrong, counts)
		}
	}
}

// TestBalanceOfSmallBatches: there are no more micro-batches than rows.
func TestBalanceOfSmallBatches(t *testing.T) {
	check(t)
	set, _ := dataset(t)
	model := nn.NewSequential(&slow{}, &slow{})
	config := train.BalanceConfig{Stages: 2, Batch: 1, Chunks: 8, Checkpoint: pipe.ExceptLast, Profile: profile.Config{Repeats: 1}}
	_, times, err := train.BalanceByTime(context.Background(), model, set, config)
	if err != nil {
		t.Fatal(err)
	}
	if times[0].Recomputation != 0 { // one micro-batch, whose backward comes first
		t.Errorf("%+v", times[0])
	}
}
