package pipe_test

import (
	"context"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// Two losses of one output count once each. The gradient of the first once stayed in the output,
// where that of the second was added to it.
func TestBackwardRetainedTakesTheGradientOfTheOutput(t *testing.T) {
	torchtest.Check(t)
	model := nn.NewSequential(nn.NewLinear(4, 4), nn.NewLinear(4, 4))
	p := started(t, model, pipe.Config{Balance: []int{1, 1}, Chunks: 2})
	c := torch.NewCtx(torch.Options{Threads: 1})
	defer c.Close()
	run, err := p.Forward(context.Background(), pipe.Batch{Input: pipe.Rows(whole(c, 1, 4, 4))})
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	backward := func(of func(context.Context, ...*torch.Tensor) error) []float32 {
		t.Helper()
		c.SetGrad(true)
		loss := c.Sum(run.Output()[0])
		c.SetGrad(false)
		c.Backward([]*torch.Tensor{loss}, []*torch.Tensor{nil}, false)
		if err := of(context.Background()); err != nil {
			t.Fatal(err)
		}
		return floats(gradient(nn.Params(model)[3]))
	}
	first := backward(run.BackwardRetained)
	if err := run.BackwardRetained(context.Background()); err == nil { // closes the run, as every failure does
		t.Error("a backward without a gradient went through")
	}
	run.Close()
	if run, err = p.Forward(context.Background(), pipe.Batch{Input: pipe.Rows(whole(c, 1, 4, 4))}); err != nil {
		t.Fatal(err)
	}
	nn.ZeroGrads(model)
	backward(run.BackwardRetained)
	for i, g := range backward(run.Backward) { // a bias: the number of rows, for each loss
		if first[i] != 4 || g != 2*first[i] {
			t.Errorf("the gradient of two losses is %v, that of one %v", g, first[i])
		}
	}
	nn.ZeroGrads(model)
}
