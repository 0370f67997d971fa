package train_test

import (
	"context"
	"testing"
	"time"

	"penstock/nn"
	"penstock/pipe"
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
	counts, seconds, err := train.BalanceByTime(context.Background(), model, set, 4, 2, pipe.MeasureOptions{Repeats: 1})
	if err != nil {
		t.Fatal(err)
	}
	// The fast layer between the slow ones may go to either side.
	if counts[0]+counts[1] != 5 || counts[0] != 3 && counts[0] != 4 {
		t.Errorf("got %v", counts)
	}
	for stage, s := range seconds {
		if s < 0.02 || s > 0.2 {
			t.Errorf("stage %d is to take %v s, its slow layer sleeps 0.02", stage, s)
		}
	}
	if _, _, err := train.BalanceByTime(context.Background(), model, set, 4, 6, pipe.MeasureOptions{Repeats: 1}); err == nil {
		t.Error("5 layers were cut into 6 stages")
	}
}
