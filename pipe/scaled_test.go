package pipe_test

import (
	"context"
	"errors"
	"math"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// scaledRun trains for some steps with a scaler, or without one.
func scaledRun(t *testing.T, s *optim.Scaler, autocast torch.Autocast, maxNorm float64) record {
	t.Helper()
	model := small()
	p := started(t, model, onDevices(pipe.Config{Balance: []int{2, 2}, Chunks: 3, Seed: 5, Autocast: autocast}))
	q := problem{input: normal(5, 4), target: later(9, normal(5, 3))}
	o, err := optim.SGD(optim.Config{LR: 0.1})
	if err != nil {
		t.Fatal(err)
	}
	c := torch.NewCtx(torch.Options{Threads: 1, Device: aside})
	defer c.Close()
	var losses []float64
	for step := range 3 {
		b := q.batch(c, p.Stages(), step)
		if s != nil {
			b.LossScale = s.Factor()
		}
		result, err := p.Step(context.Background(), b, squares{})
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, result.Loss)
		updated := true
		switch {
		case s != nil:
			_, updated, err = p.UpdateScaled(context.Background(), o, s, maxNorm)
		case maxNorm > 0:
			_, err = p.UpdateClipped(context.Background(), o, maxNorm)
		default:
			err = p.Update(context.Background(), o)
		}
		if err != nil || !updated {
			t.Fatalf("step %d: updated %v, %v", step, updated, err)
		}
	}
	return snapshot(model, losses, gradient)
}

// A scale changes no bit where nothing underflows or overflows: it is a power of two. With bfloat16
// neither.
func TestScaledTrainingIsTheSame(t *testing.T) {
	torchtest.Check(t)
	for _, autocast := range []torch.Autocast{torch.AutocastOff, torch.AutocastBFloat16} {
		for _, maxNorm := range []float64{0, 0.01} {
			want := scaledRun(t, nil, autocast, maxNorm)
			s := &optim.Scaler{Interval: 2}
			if d := want.differs(scaledRun(t, s, autocast, maxNorm)); d != "" {
				t.Errorf("autocast %v, norm %v: with a scaler another %s", autocast, maxNorm, d)
			}
			if s.Scale != 1<<17 || s.Skipped != 0 {
				t.Errorf("after three updates %+v, want the scale raised once", *s)
			}
		}
	}
}

// Gradients that are not finite leave the model as it is and are gone, and the scale is halved. At
// the lowest scale that is an error.
func TestScalerSkips(t *testing.T) {
	torchtest.Check(t)
	model := small()
	p := started(t, model, onDevices(pipe.Config{Balance: []int{2, 2}, Chunks: 3, Seed: 5}))
	o, err := optim.SGD(optim.Config{LR: 0.1})
	if err != nil {
		t.Fatal(err)
	}
	c := torch.NewCtx(torch.Options{Threads: 1, Device: aside})
	defer c.Close()
	before := snapshot(model, nil, gradient)
	q := problem{target: later(9, normal(5, 3)), input: func(c *torch.Ctx, step int) *torch.Tensor {
		x := normal(5, 4)(c, step)
		c.Fill_(c.Narrow(x, 0, 4, 1), math.Inf(1))
		return x
	}}
	for _, scale := range []float64{4, 2, 1} {
		s := &optim.Scaler{Scale: scale}
		b := q.batch(c, p.Stages(), 0)
		b.LossScale = s.Factor()
		_, err := p.Step(context.Background(), b, squares{})
		if err != nil {
			t.Fatal(err)
		}
		_, updated, err := p.UpdateScaled(context.Background(), o, s, 0)
		if updated || errors.Is(err, optim.ErrNeverFinite) != (scale == 1) || (err != nil) != (scale == 1) {
			t.Errorf("scale %v: updated %v, %v", scale, updated, err)
		}
		if d := before.differs(snapshot(model, nil, gradient)); d != "" {
			t.Errorf("scale %v: %s has changed", scale, d)
		}
		if s.Scale != max(scale/2, 1) || s.Skipped != 1 {
			t.Errorf("after scale %v: %+v", scale, *s)
		}
	}
	if _, _, err := p.UpdateScaled(context.Background(), o, &optim.Scaler{Scale: 3}, 0); err == nil {
		t.Error("a scale of 3 is accepted")
	}
	nn.ZeroGrads(model)
}
