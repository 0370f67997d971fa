package autoremat_test

import (
	"testing"

	"penstock.example/autoremat"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
)

// Parts of the model may be frozen, and set to evaluation, between steps: the next step is planned
// anew, and takes no more than is predicted.
func TestModesBetweenSteps(t *testing.T) {
	torchtest.Check(t)
	q := tower()
	q.name, q.optimizer = "thawing", sgd
	build := q.model
	var model *nn.Sequential
	q.model = func() *nn.Sequential { model = build(); return model }
	set := func(step int) {
		switch step {
		case 0:
			nn.Freeze(model.Slice(0, 12))
			nn.Eval(model.Slice(0, 12))
		case 1:
			nn.Unfreeze(model)
			nn.Train(model)
		}
	}
	want := q.run(t, 3, plain, nil, func(step int, _ wrapped) { set(step) })
	got, _ := q.under(t, q.refusal(t, 1).Least*5/4, func(step int, m *autoremat.Module) {
		peak := device.Memory().Peak
		if peak > m.Predicted() || step != 1 && peak != m.Predicted() {
			t.Errorf("step %d: the peak is %d, predicted were %d", step, peak, m.Predicted())
		}
		set(step)
	})
	if d := want.differs(got); d != "" {
		t.Errorf("%s differs", d)
	}
}
