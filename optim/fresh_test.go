package optim_test

import (
	"testing"

	"penstock/internal/torchtest"
	"penstock/nn"
	"penstock/optim"
	"penstock/torch"
)

// A fresh optimizer updates as the old one did at first, and has nothing of what that has kept.
func TestFresh(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	for _, name := range optim.Names() {
		old, err := optim.New(name, optim.Config{LR: 0.1, WeightDecay: 0.01})
		if err != nil {
			t.Fatal(err)
		}
		model := nn.NewLinearNoBias(3, 2)
		update := func(o optim.Optimizer) string {
			nn.Free(model)
			nn.Materialise(c, nn.State(model), 1)
			model.Weight.Tensor().SetGradOf(c.Ones(torch.Float32, 2, 3))
			o.Step(c, nn.Params(model))
			return string(torch.Bytes(model.Weight.Tensor()))
		}
		first, second := update(old), update(old)
		fresh, ok := optim.Fresh(old)
		if !ok || len(fresh.State()) != 0 || len(fresh.Steps()) != 0 || fresh.LR() != old.LR() {
			t.Fatalf("%s: %v, with %d tensors of state", name, ok, len(fresh.State()))
		}
		if got := update(fresh); got != first {
			t.Errorf("%s: the first update is another (the second of the old one: %v)", name, got == second)
		}
		if old.Steps()["weight"] != 2 {
			t.Errorf("%s: the old one has made %d steps", name, old.Steps()["weight"])
		}
		fresh.Close()
		old.Close()
		nn.Free(model)
	}
	if _, ok := optim.Fresh(nil); ok {
		t.Error("nothing is an optimizer")
	}
}
