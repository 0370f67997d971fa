package pipe_test

import (
	"context"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// A schedule whose programs leave out recomputations that the policy asks for is refused when the pipe
// is made, and not when a step is to run.
func TestSchedulesThatDropRecomputations(t *testing.T) {
	torchtest.Check(t)
	drops := func(c schedule.Config) (*schedule.Program, error) {
		c.Recompute = nil
		return schedule.OneFOneB(c)
	}
	for _, policy := range []pipe.Checkpoint{pipe.Always, pipe.ExceptLast, pipe.Optimal, pipe.Never} {
		model := nn.NewSequential(nn.NewLinear(4, 4), nn.NewTanh(), nn.NewLinear(4, 4))
		p, err := pipe.New(model, pipe.Config{Balance: []int{2, 1}, Chunks: 3, Checkpoint: policy, Schedule: drops})
		if err == nil {
			p.Close()
			nn.Free(model)
		}
		if refused := err != nil && strings.Contains(err.Error(), "the program has other recomputations"); refused != (policy != pipe.Never) {
			t.Errorf("%v: %v", policy, err)
		}
	}
}

// A schedule with links of its own capacity is refused where memory is not planned and nothing may
// wait: an inference of a pipe with the policy optimal.
func TestSchedulesOfTheirOwnCapacity(t *testing.T) {
	torchtest.Check(t)
	wide := func(c schedule.Config) (*schedule.Program, error) {
		c.Capacity = 3
		return schedule.GPipe(c)
	}
	model := nn.NewSequential(nn.NewLinear(4, 4), nn.NewTanh(), nn.NewLinear(4, 4))
	p := started(t, model, pipe.Config{Balance: []int{2, 1}, Chunks: 3, Checkpoint: pipe.Optimal, Schedule: wide})
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	_, err := p.Infer(context.Background(), pipe.Batch{Input: pipe.Rows(normal(6, 4)(c, 0))})
	if err == nil || !strings.Contains(err.Error(), "a capacity of 3 values on links, and memory is not planned") {
		t.Errorf("got %v", err)
	}
}
