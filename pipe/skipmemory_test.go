package pipe_test

import (
	"context"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// One micro-batch after the other, a skip of S bytes is where it must be and nowhere else: on its
// own device until it has been sent, on that of the layer that pops it until it has been popped, on
// the stages in between never. Layers look at the accounts while they run; the activations are 4
// bytes for each row.
func TestSkipIsFreedAfterItsLastUse(t *testing.T) {
	torchtest.Check(t)
	const rows, width = 8, 1000
	const skip, activation = rows * width * 4, rows * 4
	var base [4]int64
	seen := map[string][]int64{} // by point: live bytes by device, beyond the base
	look := func(point string) {
		var live []int64
		for i := range base {
			live = append(live, torch.CPU(i).Memory().Live-base[i])
		}
		seen[point] = live
	}
	pass := func(point string) nn.Layer {
		return layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { look(point); return c.AddScalar(x, 1) })
	}
	model := nn.NewSequential(stashing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		c.Stash("a", c.MulScalar(x, 2))
		look("stashed")
		return c.SumDim(x, []int64{1}, true)
	}, "a"), pass("on stage 1"), popping(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		look("before the pop")
		y := c.SumDim(c.Pop("a"), []int64{1}, true)
		return c.Add(x, y)
	}, "a"), pass("after it"), pass("on stage 3"))
	p := started(t, model, pipe.Config{Balance: []int{1, 1, 2, 1}})
	c := torch.NewCtx(torch.Options{Device: torch.CPU(5)})
	defer c.Close()
	x := normal(rows, width)(c, 0)
	for i := range base {
		base[i] = torch.CPU(i).Memory().Live
	}
	result, err := p.Infer(context.Background(), pipe.Batch{Input: pipe.Rows(x)})
	if err != nil {
		t.Fatal(err)
	}
	result.Output[0].Free()
	// Receives stand directly before what needs them, those from afar first: 0>2F0 may come as soon
	// as 0F0 is over, so that stage 1 may run before or after it. Device by device what a layer can
	// count on is its own stage's share.
	for _, row := range []struct {
		point  string
		device int
		want   int64
	}{
		{"stashed", 0, skip},
		{"before the pop", 2, skip + activation},
		{"before the pop", 0, 0},
		{"before the pop", 1, 0},
		{"after it", 2, activation}, // its input
		{"on stage 3", 3, activation},
		{"on stage 3", 2, 0},
		{"on stage 3", 1, 0},
		{"on stage 3", 0, 0},
	} {
		if got := seen[row.point][row.device]; got != row.want {
			t.Errorf("%s: %d bytes on cpu:%d, want %d", row.point, got, row.device, row.want)
		}
	}
	if got := seen["on stage 1"][1]; got != activation {
		t.Errorf("%d bytes on stage 1, want %d", got, activation)
	}
}
