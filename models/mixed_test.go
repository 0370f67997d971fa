package models_test

import (
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/torch"
)

// A block of an Inception network leaves for its backward what goes into each norm, what comes out of the ReLUs inside its branches, the pool's result with its indices, and its output:
// what the branches end in is not kept beside that.
func TestMixedBlockKeepsNoMore(t *testing.T) {
	torchtest.Check(t)
	c := torch.NewCtx(torch.Options{Device: torch.CPU(5), Grad: true, Threads: 1})
	defer c.Close()
	const rows, size, in = 2, 8, 192
	s := build(t, "googlenet", models.Options{})
	materialise(t, c, s)
	for _, l := range s.Layers() {
		if l.Name != "inception3a" {
			continue
		}
		x := c.Ones(torch.Float32, rows, in, size, size).SetRequiresGrad(true)
		before := c.Device().Memory().Live
		training(c).RunNamed(l, []*torch.Tensor{x})
		got := c.Device().Memory().Live - before
		const (
			convolved = 64 + 96 + 128 + 16 + 32 + 32
			inside    = 96 + 16
			pooled    = in + 2*in // int64 indices
			output    = 64 + 128 + 32 + 32
		)
		if want := int64(4 * (rows*size*size*(convolved+inside+pooled+output) + 2*convolved)); got != want {
			t.Errorf("%s leaves %d bytes, want %d", l.Name, got, want)
		}
		return
	}
	t.Error("there is no inception3a")
}
