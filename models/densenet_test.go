package models_test

import (
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/torch"
)

// A dense layer leaves for its backward what a norm and a convolution cannot do without, once each:
// the norms' results, after their ReLUs, and what goes into the second norm. What goes into the
// first is its input, and what comes out of the last convolution is in its output.
func TestDenseLayerKeepsNoMore(t *testing.T) {
	torchtest.Check(t)
	c := torch.NewCtx(torch.Options{Device: torch.CPU(5), Grad: true, Threads: 1})
	defer c.Close()
	const rows, size, growth = 2, 8, 32
	s := build(t, "densenet121", models.Options{})
	materialise(t, c, s)
	const first = 4 // behind features.pool0
	for i, channels := range []int64{64, 96, 128} {
		l := s.Layers()[first+i]
		x := c.Ones(torch.Float32, rows, channels, size, size).SetRequiresGrad(true)
		before := c.Device().Memory().Live
		y := training(c).RunNamed(l, []*torch.Tensor{x})[0]
		got := c.Device().Memory().Live - before
		statistics := 2 * (channels + 4*growth) // the batch's mean and deviation
		want := 4 * (rows*size*size*(channels+4*growth+4*growth+y.Size(1)) + statistics)
		if y.Size(1) != channels+growth || got != want {
			t.Errorf("%s: %v leaves %d bytes, want %d", l.Name, y, got, want)
		}
	}
}
