package train_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"penstock/nn"
	"penstock/optim"
	"penstock/torch"
	"penstock/train"
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
	path, err := store.Save(s.Progress(), recipe(), s.model, s.Optimizer)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func latest(t testing.TB, store train.Store) *train.Checkpoint {
	t.Helper()
	c, err := store.Latest()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Check(recipe(), network()); err != nil {
		t.Fatal(err)
	}
	return c
}

// resume makes a rig that goes on from the newest checkpoint.
func resume(t testing.TB, store train.Store, s setup) (*rig, func()) {
	t.Helper()
	c := latest(t, store)
	s.start = c.Progress
	next, closer := newRig(t, s)
	if err := c.Restore(next.Pipe, next.Optimizer); err != nil {
		t.Fatal(err)
	}
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
	c, err := store.Latest()
	if err != nil {
		t.Fatal(err)
	}
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

// TestThreadsAreNoMismatch: another number of threads is told of, not refused.
func TestThreadsAreNoMismatch(t *testing.T) {
	check(t)
	s, _ := newRig(t, setup{})
	for _, saved := range []int{0, 3} {
		store := train.Store{Dir: t.TempDir()}
		r := recipe()
		r.Threads = saved
		if _, err := store.Save(s.Progress(), r, s.model, s.Optimizer); err != nil {
			t.Fatal(err)
		}
		c := latest(t, store) // checks with no number
		for _, given := range []int{1, 3} {
			r.Threads = given
			if err := c.Check(r, network()); err != nil || c.Threads() != saved {
				t.Errorf("saved with %d, given %d: %v, told %d", saved, given, err, c.Threads())
			}
		}
	}
}

// TestKernelsAreNoMismatch: the kernels that computed are written down and told, not compared, and
// a checkpoint of before they were written down goes on.
func TestKernelsAreNoMismatch(t *testing.T) {
	check(t)
	s, _ := newRig(t, setup{})
	store := train.Store{Dir: t.TempDir()}
	path, err := store.Save(s.Progress(), recipe(), s.model, s.Optimizer)
	if err != nil {
		t.Fatal(err)
	}
	other := recipe()
	other.Kernels = map[string]string{"BLAS": "others"}
	if c := latest(t, store); !maps.Equal(c.Kernels(), torch.KernelNames()) || c.Check(other, network()) != nil {
		t.Errorf("kernels %v, want %v; with others: %v", c.Kernels(), torch.KernelNames(), c.Check(other, network()))
	}
	file := filepath.Join(path, "state.json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	old := regexp.MustCompile(`,\s*"kernels": \{[^}]*\}`).ReplaceAll(text, nil)
	hash := regexp.MustCompile(`("sha256": ")[0-9a-f]*("\n\})`)
	plain := bytes.TrimSuffix(hash.ReplaceAll(old, []byte("$1$2")), []byte("\n"))
	old = hash.ReplaceAll(old, fmt.Appendf(nil, "${1}%x$2", sha256.Sum256(plain)))
	if bytes.Contains(old, []byte("kernels")) || !bytes.Contains(text, []byte("kernels")) {
		t.Fatalf("no kernels to remove in %s", text)
	}
	if err := os.WriteFile(file, old, 0o666); err != nil {
		t.Fatal(err)
	}
	if c := latest(t, store); c.Kernels() != nil || c.Check(recipe(), network()) != nil {
		t.Errorf("without: kernels %v, %v", c.Kernels(), c.Check(recipe(), network()))
	}
}
