package nn_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

func TestDropout2dDropsWholeChannelsInTrainingOnly(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	x := c.Ones(torch.Float32, 100, 100, 2, 2)
	if nn.NewDropout2d(0.3).Forward(nn.NewCtx(c, nn.Config{}), x) != x {
		t.Error("evaluation does not return the input itself")
	}
	if nn.NewDropout2d(0).Forward(nn.NewCtx(c, nn.Config{Training: true}), x) != x {
		t.Error("with p = 0 training does not return the input itself")
	}
	run := func(p float64, seed uint64) []float32 {
		s := nn.NewSequential(nn.NewDropout2d(p))
		return torch.Values[float32](s.Forward(nn.NewCtx(c, nn.Config{Training: true, Seed: seed}), x))
	}
	values, kept := run(0.3, 1), 0
	for i := 0; i < len(values); i += 4 {
		channel := values[i : i+4]
		if channel[0] != channel[1] || channel[0] != channel[2] || channel[0] != channel[3] {
			t.Fatalf("a channel of ones became %v", channel)
		}
		switch {
		case channel[0] == 0:
		case math.Abs(float64(channel[0])-1/0.7) < 1e-6:
			kept++
		default:
			t.Fatalf("1 became %v, want 0 or 1/0.7", channel[0])
		}
	}
	if kept < 6770 || kept > 7230 { // five standard deviations of sqrt(10000 * 0.3 * 0.7)
		t.Errorf("%d of 10000 channels are left, want about 7000", kept)
	}
	if !slices.Equal(values, run(0.3, 1)) || slices.Equal(values, run(0.3, 2)) {
		t.Error("what is dropped does not depend on the seed, or not on the seed alone")
	}
	if slices.Max(run(1, 1)) != 0 {
		t.Error("with p = 1 something is left")
	}
	err := torch.Try(func() {
		nn.NewDropout2d(0.5).Forward(nn.NewCtx(c, nn.Config{Training: true}), c.Ones(torch.Float32, 2, 3))
	})
	if err == nil || !strings.Contains(err.Error(), "expected an input of 4 dimensions, [N, C, H, W], got 2") {
		t.Errorf("two dimensions: got %v", err)
	}
}

// What the graph keeps of a convolution, dropout, norm and activation is the input, the norm's
// input and the result: the activation works in place.
func TestConvolutionOfAUNetKeepsThreeActivations(t *testing.T) {
	a := newAccount(t, true)
	s := nn.NewSequential(nn.NewConv2d(4, 4, nn.Square(3), nn.Conv2dConfig{Padding: nn.Square(1), NoBias: true}), nn.NewDropout2d(0.1),
		nn.NewInstanceNorm2d(4, nn.InstanceNormConfig{}), nn.NewLeakyReLU(nn.LeakyReLUConfig{InPlace: true}))
	nn.Materialise(a.Ctx, nn.State(s), 1)
	defer nn.Free(s)
	a.start()
	x := a.Ones(torch.Float32, 2, 4, 8, 8)
	s.Forward(nn.NewCtx(a.Ctx, nn.Config{Training: true}), x)
	const activation = 2 * 4 * 8 * 8 * 4
	const channels = 3 * 2 * 4 * 4 // dropout's mask, the norm's mean and deviation
	if want := int64(3*activation + channels); a.used() != want {
		t.Errorf("%d bytes are kept, want 3 activations and 3 numbers a channel, %d", a.used(), want)
	}
}

func TestLeakyReLUInPlaceTakesNoMemory(t *testing.T) {
	a := newAccount(t, false)
	l := nn.NewLeakyReLU(nn.LeakyReLUConfig{InPlace: true})
	x := torch.From(a.Ctx, []float32{-2, 3})
	a.start()
	y := l.Forward(nn.NewCtx(a.Ctx, nn.Config{}), x)
	if a.peak() != 0 || y != x || !l.OverwritesInput() || nn.NewLeakyReLU(nn.LeakyReLUConfig{}).OverwritesInput() {
		t.Errorf("%d bytes were live, and %v is %v", a.peak(), y, x)
	}
	if got := torch.Values[float32](x); !slices.Equal(got, []float32{-0.02, 3}) {
		t.Errorf("got %v", got)
	}
}
