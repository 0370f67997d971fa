package optim_test

import (
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/torch"
)

// TestSlots counts what a step leaves.
func TestSlots(t *testing.T) {
	for _, test := range []struct {
		name   string
		config optim.Config
		want   int
	}{
		{"sgd", optim.Config{LR: 0.1}, 0}, {"sgd", optim.Config{LR: 0.1, Momentum: 0.9}, 1}, {"adam", optim.Config{LR: 0.1}, 2}, {"adamw", optim.Config{LR: 0.1}, 2},
		{"rmsprop", optim.Config{LR: 0.1}, 1}, {"rmsprop", optim.Config{LR: 0.1, Momentum: 0.9, Centered: true}, 3},
	} {
		c := torchtest.New(t, torch.Options{})
		got, err := optim.Slots(test.name, test.config)
		if err != nil || got != test.want {
			t.Errorf("%s %+v: %d, %v, want %d", test.name, test.config, got, err, test.want)
		}
		o := must.Get(optim.New(test.name, test.config))(t)
		model := nn.NewLinearNoBias(3, 2)
		nn.Materialise(c, nn.State(model), 1)
		model.Weight.Tensor().SetGradOf(c.Ones(torch.Float32, 2, 3))
		o.Step(c, nn.Params(model))
		if left := len(o.State()); left != test.want {
			t.Errorf("%s %+v: a step leaves %d tensors, want %d", test.name, test.config, left, test.want)
		}
		o.Close()
		nn.Free(model)
	}
	if _, err := optim.Slots("sdg", optim.Config{}); err == nil {
		t.Error("there is an optimizer sdg")
	}
}
