package optim_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"penstock.example/internal/gradnorm"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/torch"
)

// The global norm decides over every weight, so one bit of it that depended on the partition would
// end the equality of all runs.
func TestGlobalNormDoesNotDependOnThePartition(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	model := newModel(t, torch.CPU(0))
	setGrads(c, model, 0)
	want := gradnorm.Global(gradnorm.Squared(c, model))
	random := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		stages := 1 + random.IntN(4)
		parts := make([][]nn.NamedParam, stages)
		for _, i := range random.Perm(len(model)) {
			k := random.IntN(stages)
			parts[k] = append(parts[k], model[i])
		}
		var norms [][]gradnorm.SquaredNorm
		for i, part := range parts {
			stage := torch.NewCtx(torch.Options{Device: torch.CPU(i), Threads: 1 + random.IntN(4)})
			norms = append(norms, gradnorm.Squared(stage, part))
			stage.Close()
		}
		if got := gradnorm.Global(norms...); got != want {
			t.Fatalf("%d stages: the norm is %v, want %v", stages, got, want)
		}
	}
}

func TestClipFactor(t *testing.T) {
	for _, row := range []struct {
		norm, most, want float64
		reason           string
	}{
		{2, 1, 0.49999975000012, "PyTorch's 1e-6 is in the denominator"},
		{1, 2, 1, "gradients are never made larger"},
		{0, 1, 1, "a norm of zero divides by 1e-6"},
		{5, math.Inf(1), 1, "no limit"},
		{1, 1, 0.999999000001, "just at the limit"},
	} {
		got, err := gradnorm.ClipFactor(row.norm, row.most)
		if err != nil || math.Abs(got-row.want) > 1e-12 {
			t.Errorf("%v to %v: got %v, %v, want %v (%s)", row.norm, row.most, got, err, row.want, row.reason)
		}
	}
	for _, most := range []float64{0, -1, math.NaN()} {
		if _, err := gradnorm.ClipFactor(1, most); err == nil || errors.Is(err, optim.ErrNotFinite) {
			t.Errorf("to %v: got %v", most, err)
		}
	}
}

func TestClippingWhatIsNotFiniteTouchesNothing(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	model := newModel(t, torch.CPU(0))
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		setGrads(c, model, 0)
		c.Fill_(c.GradOf(model[4].Tensor()), bad)
		before := torch.Bytes(c.GradOf(model[0].Tensor()))
		norm, err := clip(c, model, 1)
		if !errors.Is(err, optim.ErrNotFinite) || !strings.HasPrefix(err.Error(), "optim: ") {
			t.Errorf("%v: got %v", bad, err)
		}
		if !math.IsNaN(norm) && !math.IsInf(norm, 1) {
			t.Errorf("%v: the norm is %v", bad, norm)
		}
		if string(torch.Bytes(c.GradOf(model[0].Tensor()))) != string(before) {
			t.Errorf("%v: gradients were scaled", bad)
		}
	}
}
