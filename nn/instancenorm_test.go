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

func TestInstanceNormRefuses(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	n := nn.NewCtx(c, nn.Config{})
	l := nn.NewInstanceNorm2d(3, nn.InstanceNormConfig{})
	for _, row := range []struct {
		shape []int64
		want  string
	}{
		{[]int64{2, 3, 1, 1}, "expected more than 1 value per channel and sample; use larger images"},
		{[]int64{2, 6, 2, 2}, "expected an input of [N, 3, H, W]"},
		{[]int64{3, 2, 2}, "expected an input of [N, 3, H, W]"},
	} {
		if err := torch.Try(func() { l.Forward(n, c.Ones(torch.Float32, row.shape...)) }); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%v: got %v, want %q in it", row.shape, err, row.want)
		}
	}
}

func TestConstructorsOfImageLayersNameTheMistake(t *testing.T) {
	for _, row := range []struct {
		want string
		f    func()
	}{
		{"InstanceNorm2d: channels is 0; it must be at least 1", func() { nn.NewInstanceNorm2d(0, nn.InstanceNormConfig{}) }},
		{"InstanceNorm2d: Eps is -1; it must be positive, or 0 for 1e-5", func() { nn.NewInstanceNorm2d(1, nn.InstanceNormConfig{Eps: -1}) }},
		{"Dropout2d: p is 2; it must be from 0 to 1", func() { nn.NewDropout2d(2) }},
		{"LeakyReLU: Slope is -1; in place it must be positive, or 0 for 0.01", func() { nn.NewLeakyReLU(nn.LeakyReLUConfig{Slope: -1, InPlace: true}) }},
	} {
		if got := recovered(row.f); got != "nn: "+row.want {
			t.Errorf("got  %q\nwant %q", got, "nn: "+row.want)
		}
	}
}

// A sample's result does not depend on its neighbours, so that micro-batches change nothing.
func TestInstanceNormKnowsNoOtherSample(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	n := nn.NewCtx(c, nn.Config{Training: true})
	l := nn.NewInstanceNorm2d(3, nn.InstanceNormConfig{})
	x := c.Normal_(c.Empty(torch.Float32, 4, 3, 5, 5), 1, 2)
	whole := torch.Values[float32](c.Contiguous(c.Narrow(l.Forward(n, x), 0, 2, 1)))
	alone := torch.Values[float32](l.Forward(n, c.Contiguous(c.Narrow(x, 0, 2, 1))))
	if !slices.Equal(whole, alone) {
		t.Error("the third sample's result depends on the others")
	}
	var sum, squares float64
	for _, v := range alone[:25] {
		sum += float64(v)
		squares += float64(v) * float64(v)
	}
	if math.Abs(sum) > 1e-4 || math.Abs(squares/25-1) > 1e-4 {
		t.Errorf("a channel has mean %v and mean square %v, want 0 and 1", sum/25, squares/25)
	}
}
