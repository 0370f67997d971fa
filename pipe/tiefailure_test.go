package pipe_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// tiedGradient makes a step of a tied model and returns the gradient of the shared weight, which it
// drops.
func tiedGradient(t *testing.T, p *pipe.Pipe) ([]byte, error) {
	t.Helper()
	c := torch.NewCtx(torch.Options{Threads: 1})
	defer c.Close()
	_, err := p.Step(context.Background(),
		pipe.Batch{Input: pipe.Rows(classes(6, 6)(c, 0)), Target: pipe.Rows(classes(6, 6)(c, 1))}, nn.CrossEntropy())
	defer nn.ZeroGrads(p.Model())
	return gradient(nn.Params(p.Model())[0]), err
}

// A backward that fails after a use of a replica once left the gradient of that use in the
// replica, where no ZeroGrads finds it: the next step counted it as its own.
func TestTiedParameterAfterAFailedBackward(t *testing.T) {
	torchtest.Check(t)
	for _, cfg := range []pipe.Config{{}, {Devices: make([]torch.Device, 2)}} {
		fail := false
		e := nn.NewEmbedding(6, 4, nn.EmbeddingConfig{})
		head := &call{}
		head.p = head.Share("weight", e.Weight)
		head.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.PlainLinear(x, head.p.Tensor(), nil) }
		bad := &call{}
		bad.p = bad.Share("weight", e.Weight)
		bad.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			if fail && c.Recomputing {
				panic("fails in backward")
			}
			return c.Matmul(c.PlainLinear(x, bad.p.Tensor(), nil), bad.p.Tensor())
		}
		cfg.Balance, cfg.Chunks, cfg.Checkpoint = []int{1, 3}, 2, pipe.Never
		p := started(t, nn.NewSequential(e, nn.NewLinear(4, 4), nn.Checkpointed(bad), head), cfg)
		want, err := tiedGradient(t, p)
		if err != nil {
			t.Fatal(err)
		}
		fail = true
		if _, err := tiedGradient(t, p); err == nil {
			t.Fatal("the step did not fail")
		}
		fail = false
		if got, err := tiedGradient(t, p); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%+v: after a failed step the gradient is %v, %v; want %v", cfg, floats(got), err, floats(want))
		}
	}
}

// Two pipes of one model would each put replicas, or none, where the other works: gradients once
// went lost in silence.
func TestTiedModelInTwoPipes(t *testing.T) {
	torchtest.Check(t)
	model := tied(true, false)
	whole := started(t, model, pipe.Config{Chunks: 2})
	want, err := tiedGradient(t, whole)
	if err != nil {
		t.Fatal(err)
	}
	parts := started(t, model, pipe.Config{Balance: []int{1, 2, 2}, Chunks: 2})
	if got, err := tiedGradient(t, parts); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the second pipe has another gradient; %v", err)
	}
	if _, err := tiedGradient(t, whole); err == nil || !strings.Contains(err.Error(), "Close that one first") {
		t.Errorf("the first pipe: got %v", err)
	}
	for _, balance := range [][]int{{5}, {2, 3}} {
		if _, err := pipe.New(model, pipe.Config{Balance: balance}); err == nil || !strings.Contains(err.Error(),
			"Close that one first") {
			t.Errorf("a third pipe: got %v", err)
		}
	}
	parts.Close()
	if got, err := tiedGradient(t, whole); err != nil || !bytes.Equal(got, want) {
		t.Errorf("after Close of the second the first has another gradient; %v", err)
	}
}
