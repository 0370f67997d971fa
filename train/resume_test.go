package train_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"penstock.example/data"
	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/train"
)

// recipe is that of the rigs of these tests.
func recipe() train.Recipe {
	return train.Recipe{
		Model: train.Choice{Name: "network", Settings: map[string]any{"classes": 3}}, Data: train.Choice{Name: "synthetic"}, Batch: batch, Chunks: 3, Seed: 7,
		Optimizer: train.Choice{Name: "sgd", Settings: optim.Config{LR: 0.05, Momentum: 0.9}}, LRSchedule: train.Choice{Name: "constant"},
	}
}

func save(t testing.TB, store train.Store, s *rig) string {
	t.Helper()
	path := must.Get(store.Save(s.Progress(), recipe(), s.model, s.Optimizer))(t)
	return path
}

func latest(t testing.TB, store train.Store) *train.Checkpoint {
	t.Helper()
	c := must.Get(store.Latest())(t)
	must.Do(t, c.Check(recipe(), network()))
	return c
}

// resume makes a rig that goes on from the newest checkpoint.
func resume(t testing.TB, store train.Store, s setup) (*rig, func()) {
	t.Helper()
	c := latest(t, store)
	s.start = c.Progress
	next, closer := newRig(t, s)
	must.Do(t, c.Restore(next.Pipe, next.Optimizer))
	return next, closer
}

// TestResumeIsBitEqual: a run that is interrupted, saved and resumed, under another cut of the
// model, ends with the bits of one that was not.
func TestResumeIsBitEqual(t *testing.T) {
	const steps = 9 // of 5 in an epoch
	optimizers := []setup{
		{optimizer: "sgd", config: optim.Config{LR: 0.05, Momentum: 0.9, Nesterov: true, WeightDecay: 1e-3}},
		{optimizer: "sgd", config: optim.Config{LR: 0.05}}, // has no state
		{optimizer: "adam", config: optim.Config{LR: 0.01}},
		{optimizer: "adamw", config: optim.Config{LR: 0.01, WeightDecay: 0.1}},
		{optimizer: "rmsprop", config: optim.Config{LR: 0.001, Momentum: 0.5, Centered: true}},
	}
	for _, o := range optimizers {
		for _, at := range []int64{0, 2, 5, 7, steps} { // before the first step; within an epoch; at its end; within the next; at the end
			t.Run(fmt.Sprintf("%s %v from step %d", o.optimizer, o.config, at), func(t *testing.T) {
				check(t)
				o.devices = torchtest.Devices(3)
				whole, closer := newRig(t, o)
				whole.Steps, whole.ClipNorm, whole.LRSchedule = steps, 1, optim.Cosine{Base: o.config.LR, Steps: steps}
				whole.run(t)
				want := train.ParamsSHA256(whole.model)
				closer()

				store := train.Store{Dir: t.TempDir()}
				o.balance = []int{3, 5}
				first, closer := newRig(t, o)
				first.Steps, first.ClipNorm, first.LRSchedule = steps, 1, whole.LRSchedule
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				if at == 0 {
					cancel()
				}
				first.OnStep = []train.Hook{func(i train.StepInfo) error {
					if i.Step == at {
						cancel()
					}
					return nil
				}}
				if _, err := first.Run(ctx); err != nil {
					t.Fatal(err)
				}
				save(t, store, first)
				closer()

				o.balance = []int{2, 4, 2}
				second, _ := resume(t, store, o)
				second.Steps, second.ClipNorm, second.LRSchedule = steps, 1, whole.LRSchedule
				if second.Step != at {
					t.Fatalf("resumed at step %d, saved at %d", second.Step, at)
				}
				second.run(t)
				if got := train.ParamsSHA256(second.model); got != want {
					t.Error("the resumed run has other bits than the uninterrupted one")
				}
			})
		}
	}
}

// TestRestoreRefusesStateOfAnotherOptimizer: what a checkpoint of another optimizer does to the one
// at hand is an error, not a mixture.
func TestRestoreRefusesStateOfAnotherOptimizer(t *testing.T) {
	check(t)
	store := train.Store{Dir: t.TempDir()}
	s, closer := newRig(t, setup{})
	s.Steps = 1
	s.run(t)
	save(t, store, s)
	closer()
	other, _ := newRig(t, setup{optimizer: "adam"})
	if err := latest(t, store).Restore(other.Pipe, other.Optimizer); err == nil {
		t.Error("Adam took the state of SGD")
	}
}

func TestCheckFindsWhatDiffers(t *testing.T) {
	check(t)
	store := train.Store{Dir: t.TempDir()}
	s, _ := newRig(t, setup{})
	path := save(t, store, s)
	c := must.Get(store.Latest())(t)
	tests := []struct {
		change              func(r *train.Recipe)
		model               *nn.Sequential // nil is the one saved
		field, saved, given string
	}{
		{change: func(r *train.Recipe) { r.Batch = 9 }, field: "batch", saved: "8", given: "9"},
		{change: func(r *train.Recipe) { r.Chunks = 4 }, field: "chunks", saved: "3", given: "4"},
		{change: func(r *train.Recipe) { r.Seed = 1<<64 - 1 }, field: "seed", saved: "7", given: "18446744073709551615"},
		{change: func(r *train.Recipe) { r.ClipNorm = 0.5 }, field: "clip_norm", saved: "0", given: "0.5"},
		{change: func(r *train.Recipe) { r.Data.Name = "mnist" }, field: "data.name", saved: `"synthetic"`, given: `"mnist"`},
		{change: func(r *train.Recipe) { r.Data.Settings = 3 }, field: "data.settings", saved: "absent", given: "3"},
		{change: func(r *train.Recipe) { r.Model.Name = "vgg16" }, field: "model.name", saved: `"network"`, given: `"vgg16"`},
		{change: func(r *train.Recipe) { r.Model.Settings = struct{ Classes int }{3} }, field: "model.settings.Classes", saved: "absent", given: "3"},
		{change: func(r *train.Recipe) { r.Optimizer.Settings = optim.Config{LR: 0.05, Momentum: 0.8} },
			field: "optimizer.settings.Momentum", saved: "0.9", given: "0.8"},
		{change: func(r *train.Recipe) { r.LRSchedule.Name = "cosine" }, field: "schedule.name", saved: `"constant"`, given: `"cosine"`},
		{model: nn.NewSequential(nn.NewFlatten(1, -1), nn.NewLinear(16, 13)), field: `tensor "1.bias"`, saved: "F32[12]", given: "F32[13]"},
		{model: network().Add("extra", nn.NewLinear(3, 3)), field: `tensor "extra.bias"`, saved: "absent", given: "F32[3]"},
		{model: nn.NewSequential(nn.NewFlatten(1, -1), nn.NewLinear(16, 12)), field: `tensor "2.bias"`, saved: "F32[12]", given: "absent"},
	}
	for _, tt := range tests {
		t.Run(tt.field, func(t *testing.T) {
			r, model := recipe(), network()
			if tt.change != nil {
				tt.change(&r)
			}
			if tt.model != nil {
				model = tt.model
			}
			got, ok := c.Check(r, model).(*train.MismatchError)
			if want := (train.MismatchError{Path: path, Field: tt.field, Saved: tt.saved, Given: tt.given}); !ok || *got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
	if err := c.Check(recipe(), network()); err != nil {
		t.Errorf("the same run: %v", err)
	}
}

// A run may go on at another learning rate, for other steps and epochs, and save at others; what it
// changes is told. What was not written down is no change.
func TestChanges(t *testing.T) {
	check(t)
	s, _ := newRig(t, setup{})
	saved := recipe()
	saved.LRSchedule, saved.Steps, saved.Samples = train.Choice{Name: "cosine", Settings: map[string]any{"warmup": 0, "schedule-steps": 9}}, 9, &data.Info{Name: "synthetic", ClassNames: []string{"a", "b"}}
	store := train.Store{Dir: t.TempDir()}
	if _, err := store.Save(s.Progress(), saved, s.model, s.Optimizer); err != nil {
		t.Fatal(err)
	}
	c := must.Get(store.Latest())(t)
	r := saved
	r.Optimizer.Settings = optim.Config{LR: 0.01, Momentum: 0.9}
	r.LRSchedule.Settings = map[string]any{"warmup": 0, "schedule-steps": 20}
	r.Steps, r.Epochs, r.SaveEvery, r.Samples = 20, 3, 5, nil
	if err := c.Check(r, network()); err != nil {
		t.Error(err)
	}
	got, err := c.Changes(r)
	want := []train.Change{{"epochs", "0", "3"}, {"optimizer.settings.LR", "0.05", "0.01"}, {"save_every", "0", "5"}, {"schedule.settings.schedule-steps", "9", "20"}, {"steps", "9", "20"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if back := c.Recipe; back.Samples.ClassNames[1] != "b" || back.Batch != batch || back.Model.Settings.(map[string]any)["classes"] != json.Number("3") {
		t.Errorf("%+v", back)
	}
	r.LRSchedule.Settings = map[string]any{"warmup": 2, "schedule-steps": 20}
	var mismatch *train.MismatchError
	if err := c.Check(r, network()); !errors.As(err, &mismatch) || mismatch.Field != "schedule.settings.warmup" {
		t.Error(err)
	}
}

// A run goes on with the tokenizer that it was trained with. Where one of the two is not known, it is taken.
func TestOtherTokenizer(t *testing.T) {
	check(t)
	s, _ := newRig(t, setup{})
	for _, row := range []struct {
		saved, given *data.Info
		refused      bool
	}{
		{&data.Info{Tokenizer: "one"}, &data.Info{Tokenizer: "other"}, true},
		{&data.Info{Tokenizer: "one"}, &data.Info{Tokenizer: "one"}, false},
		{&data.Info{}, &data.Info{Tokenizer: "other"}, false},
		{nil, &data.Info{Tokenizer: "other"}, false},
	} {
		store := train.Store{Dir: t.TempDir()}
		r := recipe()
		r.Samples = row.saved
		if _, err := store.Save(s.Progress(), r, s.model, s.Optimizer); err != nil {
			t.Fatal(err)
		}
		r.Samples = row.given
		err := latest(t, store).Check(r, network())
		var mismatch *train.MismatchError
		if errors.As(err, &mismatch) != row.refused || row.refused && (mismatch.Saved != "one" || mismatch.Given != "other") || !row.refused && err != nil {
			t.Errorf("%+v and %+v: %v", row.saved, row.given, err)
		}
	}
}
