package nn_test

import (
	"testing"

	"penstock.example/nn"
	"penstock.example/torch"
)

// Between forward and backward a checkpoint holds its inputs, to the byte, and who uses its outputs
// those: what the layers in it would keep is not there. Afterwards nothing is.
func TestCheckpointedHoldsItsInputs(t *testing.T) {
	const activation = 4 * 100 * 10
	tanhs := func(n int) nn.Layer {
		s := nn.NewSequential()
		for i := range n {
			s.Add(string(rune('a'+i)), nn.NewTanh())
		}
		return s
	}
	stacked := func(wrap wrapper) *nn.Sequential { return nn.NewSequential(wrap(tanhs(6)), wrap(tanhs(6))) }
	overwriting := func(wrap wrapper) *nn.Sequential {
		// which keeps nothing
		double := doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.MulScalar(x, 2) })
		return nn.NewSequential(double, wrap(chain(nn.NewReLUInPlace(), tanhs(4))))
	}
	skipping := func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(tanhs(1), stashing("in"), wrap(chain(tanhs(2), popping("in"), tanhs(1), stashing("out"), tanhs(2))), tanhs(1), popping("out"))
	}
	tuple := func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(wrap(mapping(func(c *nn.Ctx, xs list) list {
			y := c.Tanh(c.Tanh(xs[0]))
			return list{y, c.Argmax(y, 1), y}
		})))
	}
	for _, row := range []struct {
		reason string
		build  func(wrapper) *nn.Sequential
		wrap   wrapper
		want   int64 // bytes beside the input
	}{
		{"each Tanh keeps its output", stacked, bare, 12 * activation},
		{"two wrappers: two outputs, of which one is an input", stacked, nn.Checkpointed, 2 * activation},
		{"nested: nothing in them is kept", stacked, twice, 2 * activation},
		{"all in one", func(wrap wrapper) *nn.Sequential { return nn.NewSequential(wrap(chain(wrap(tanhs(6)), tanhs(6)))) }, nn.Checkpointed, activation},
		{"the ReLU's output and those of four Tanh", overwriting, bare, 5 * activation},
		{"the copy for a layer that works in place is not kept", overwriting, nn.Checkpointed, 2 * activation},
		{"skips: seven outputs of Tanh and the sum at the end", skipping, bare, 8 * activation},
		{"input and skip into the wrapper are one memory; then the Tanh after it, and the sum", skipping, nn.Checkpointed, 3 * activation},
		{"what is given twice is held once, and integers are held", tuple, nn.Checkpointed, activation + 8*100},
		{"not wrapped there is one more", tuple, bare, 2*activation + 8*100},
	} {
		t.Run(row.reason, func(t *testing.T) {
			a := newAccount(t, true)
			model := row.build(row.wrap)
			x := a.Normal_(a.Empty(torch.Float32, 100, 10), 0, 1).SetRequiresGrad(true)
			a.start()
			ys := model.ForwardTuple(nn.NewCtx(a.Ctx, nn.Config{Training: true}), list{x})
			if a.used() != row.want {
				t.Errorf("%d bytes are live after forward (%.2f activations), want %d", a.used(), float64(a.used())/activation, row.want)
			}
			grad := a.OnesLike(ys[0])
			a.Backward(ys[:1], list{grad}, false)
			x.SetGradOf(nil)
			for _, t := range append(ys, grad) {
				t.Free()
			}
			if a.used() != 0 {
				t.Errorf("%d bytes are left after backward", a.used())
			}
		})
	}
}

// The second run makes one wrapper's graph at a time: the peak of a whole step is that of the
// longest, not of the sum.
func TestCheckpointedLowersThePeakOfAStep(t *testing.T) {
	const activation, blocks, layers = 4 * 100 * 10, 8, 6
	peak := func(wrap wrapper) int64 {
		a := newAccount(t, true)
		model := nn.NewSequential()
		for i := range blocks {
			block := nn.NewSequential()
			for k := range layers {
				block.Add(string(rune('a'+k)), nn.NewTanh())
			}
			model.Add(string(rune('a'+i)), wrap(block))
		}
		x := a.Ones(torch.Float32, 100, 10).SetRequiresGrad(true)
		a.start()
		y := model.Forward(nn.NewCtx(a.Ctx, nn.Config{}), x)
		a.Backward(list{y}, list{a.OnesLike(y)}, false)
		x.SetGradOf(nil)
		a.Close()
		return a.peak()
	}
	if got, want := peak(bare), int64(blocks*layers+3)*activation; got > want {
		t.Errorf("without wrappers the peak is %d bytes, want at most %d", got, want)
	}
	if got, want := peak(nn.Checkpointed), int64(blocks+layers+3)*activation; got > want {
		t.Errorf("with wrappers the peak is %d bytes, want at most %d", got, want)
	}
}

// Without a graph a wrapper costs nothing, but for the copy that keeps a layer from working in
// place on what it does not own.
func TestCheckpointedWithoutAGraphIsPlain(t *testing.T) {
	const activation = 4 * 100 * 10
	for _, row := range []struct {
		reason     string
		layer      nn.Layer
		peak, live int64
	}{
		{"each layer's input goes when its output is there", chain(nn.NewTanh(), nn.NewTanh(), nn.NewTanh()), 2 * activation, activation},
		{"a layer that returns its input", nn.NewIdentity(), 0, 0},
		{"a layer that works in place", nn.NewReLUInPlace(), activation, activation},
	} {
		a := newAccount(t, false)
		x := a.Ones(torch.Float32, 100, 10)
		a.start()
		twice(row.layer).Forward(nn.NewCtx(a.Ctx, nn.Config{Training: true}), x)
		if a.peak() != row.peak || a.used() != row.live {
			t.Errorf("%s: %d bytes are live and %d were, want %d and %d", row.reason, a.used(), a.peak(), row.live, row.peak)
		}
		a.Close()
	}
}
