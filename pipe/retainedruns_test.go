package pipe_test

import (
	"bytes"
	"context"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// Runs that are open at the same time go back in any order and as often as is wanted, each to its
// own gradients.
func TestBackwardRetainedOfSeveralRuns(t *testing.T) {
	torchtest.Check(t)
	for _, generate := range []schedule.Generator{schedule.GPipe, oneAtATime} {
		for _, policy := range policies {
			model := tied(true, false)
			p := started(t, model, pipe.Config{Balance: []int{1, 2, 2}, Chunks: 3, Checkpoint: policy, Schedule: generate})
			c := torch.NewCtx(torch.Options{Threads: 1})
			defer c.Close()
			g := normal(6, 6)(c, 1)
			forward := func(i int) *pipe.Run {
				run, err := p.Forward(context.Background(), pipe.Batch{Input: pipe.Rows(classes(6, 6)(c, i)), Step: int64(i)})
				if err != nil {
					t.Fatal(err)
				}
				return run
			}
			gradients := func(err error) []byte {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
				defer nn.ZeroGrads(model)
				return gradient(nn.Params(model)[0])
			}
			var want [3][]byte
			for i := range want {
				want[i] = gradients(forward(i).Backward(context.Background(), g))
			}
			var runs [3]*pipe.Run
			for i := range runs {
				runs[i] = forward(i)
			}
			for _, i := range []int{2, 0, 1} {
				for range 2 {
					if !bytes.Equal(gradients(runs[i].BackwardRetained(context.Background(), g)), want[i]) {
						t.Errorf("%v, run %d: another gradient than by itself", policy, i)
					}
				}
			}
			if !bytes.Equal(gradients(runs[1].Backward(context.Background(), g)), want[1]) {
				t.Errorf("%v: another gradient in the last backward", policy)
			}
			for _, run := range runs { // one of them a second time
				run.Close()
			}
		}
	}
}

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
