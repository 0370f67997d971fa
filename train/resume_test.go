package train_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"strings"
	"testing"

	"penstock.example/data"
	"penstock.example/internal/draws"
	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/torch"
	"penstock.example/train"
)

// recipe is that of the rigs of these tests.
func recipe() train.Recipe {
	return train.Recipe{
		Model: train.Choice{Name: "network",
			Settings: map[string]any{"classes": 3}}, Data: train.Choice{Name: "synthetic"}, Batch: batch, Chunks: 3, Seed: 7,
		Optimizer: train.Choice{Name: "sgd",
			Settings: optim.Config{LR: 0.05, Momentum: 0.9}}, LRSchedule: train.Choice{Name: "constant"},
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
		// before the first step; within an epoch; at its end; within the next; at the end
		for _, at := range []int64{0, 2, 5, 7, steps} {
			t.Run(fmt.Sprintf("%s %v from step %d", o.optimizer, o.config, at), func(t *testing.T) {
				check(t)
				o.devices = testDevices(3)
				whole, closer := newRig(t, o)
				whole.Steps, whole.ClipNorm = steps, 1
				whole.LRSchedule = must.Get(optim.NewSchedule("cosine", optim.ScheduleConfig{
					LR: o.config.LR, TotalSteps: steps}))(t)
				whole.run(t)
				want := sumOf(whole.model)
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
				must.Get(first.Run(ctx))(t)
				save(t, store, first)
				closer()

				o.balance = []int{2, 4, 2}
				second, _ := resume(t, store, o)
				second.Steps, second.ClipNorm, second.LRSchedule = steps, 1, whole.LRSchedule
				if second.Step != at {
					t.Fatalf("resumed at step %d, saved at %d", second.Step, at)
				}
				second.run(t)
				if got := sumOf(second.model); got != want {
					t.Error("the resumed run has other bits than the uninterrupted one")
				}
			})
		}
	}
}

func TestCheckFindsWhatDiffers(t *testing.T) {
	check(t)
	store := train.Store{Dir: t.TempDir()}
	s, _ := newRig(t, setup{})
	saved := recipe()
	saved.Samples = &data.Info{Tokenizer: "one"}
	set := func(fingerprint string, samples int) map[string]any {
		return map[string]any{"fingerprint": fingerprint, "samples": samples}
	}
	saved.Data.Settings = set("a", 5)
	path := must.Get(store.Save(s.Progress(), saved, s.model, s.Optimizer))(t)
	c := must.Get(store.Latest())(t)
	tests := []struct {
		change              func(r *train.Recipe)
		model               *nn.Sequential // nil is the one saved
		field, saved, given string
	}{
		{change: func(r *train.Recipe) { r.Batch = 9 }, field: "batch", saved: "8", given: "9"},
		{change: func(r *train.Recipe) { r.Seed = 1<<64 - 1 }, field: "seed", saved: "7",
			given: "18446744073709551615"},
		{change: func(r *train.Recipe) { r.Data.Settings = 3 }, field: "data.settings",
			saved: `{"fingerprint":"a","samples":5}`, given: "3"},
		{change: func(r *train.Recipe) { r.Data.Settings = set("b", 5) }, field: "data.settings.fingerprint",
			saved: `"a"`, given: `"b"`},
		{change: func(r *train.Recipe) { r.Data.Settings = set("b", 6) }, field: "data.settings.samples",
			saved: "5", given: "6"},
		{change: func(r *train.Recipe) { r.Model.Settings = struct{ Classes int }{3} },
			field: "model.settings.Classes", saved: "absent", given: "3"},
		{change: func(r *train.Recipe) { r.Optimizer.Settings = optim.Config{LR: 0.05, Momentum: 0.8} },
			field: "optimizer.settings.Momentum", saved: "0.9", given: "0.8"},
		{change: func(r *train.Recipe) { r.Samples = &data.Info{Tokenizer: "other"} },
			field: "the SHA-256 of the tokenizer", saved: `"one"`, given: `"other"`},
		{change: func(r *train.Recipe) { r.LRSchedule.Name = "cosine" }, field: "schedule.name",
			saved: `"constant"`, given: `"cosine"`},
		{model: nn.NewSequential(nn.NewFlatten(1, -1), nn.NewLinear(16, 13)), field: `tensor "1.bias"`,
			saved: "F32[12]", given: "F32[13]"},
		{model: network().Add("extra", nn.NewLinear(3, 3)), field: `tensor "extra.bias"`, saved: "absent",
			given: "F32[3]"},
		{model: nn.NewSequential(nn.NewFlatten(1, -1), nn.NewLinear(16, 12)), field: `tensor "2.bias"`,
			saved: "F32[12]", given: "absent"},
	}
	for _, tt := range tests {
		t.Run(tt.field, func(t *testing.T) {
			r, model := recipe(), network()
			r.Data = saved.Data
			if tt.change != nil {
				tt.change(&r)
			}
			if tt.model != nil {
				model = tt.model
			}
			got, ok := c.Check(r, model).(*train.MismatchError)
			want := train.MismatchError{Path: path, Change: train.Change{tt.field, tt.saved, tt.given}}
			if !ok || *got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
	for _, same := range []*data.Info{nil, {}, {Tokenizer: "one"}} { // an unknown tokenizer is taken
		r := recipe()
		r.Data, r.Samples = saved.Data, same
		if err := c.Check(r, network()); err != nil {
			t.Errorf("the same run: %v", err)
		}
	}
}

// A run may go on at another learning rate, for other steps and epochs, and save at others; what it
// changes is told. What was not written down is no change.
func TestChanges(t *testing.T) {
	check(t)
	s, _ := newRig(t, setup{})
	saved := recipe()
	saved.LRSchedule, saved.Steps, saved.Samples =
		train.Choice{Name: "cosine", Settings: map[string]any{"warmup": 0,
			"schedule-steps": 9}}, 9, &data.Info{Name: "synthetic", ClassNames: []string{"a", "b"}}
	store := train.Store{Dir: t.TempDir()}
	must.Get(store.Save(s.Progress(), saved, s.model, s.Optimizer))(t)
	c := must.Get(store.Latest())(t)
	r := saved
	r.Optimizer.Settings = optim.Config{LR: 0.01, Momentum: 0.9}
	r.LRSchedule.Settings = map[string]any{"warmup": 0, "schedule-steps": 20}
	r.Steps, r.Epochs, r.SaveEvery, r.Samples = 20, 3, 5, nil
	if err := c.Check(r, network()); err != nil {
		t.Error(err)
	}
	got, err := c.Changes(r)
	want := []train.Change{{"epochs", "0", "3"}, {"optimizer.settings.LR", "0.05", "0.01"},
		{"save_every", "0", "5"}, {"schedule.settings.schedule-steps", "9", "20"}, {"steps", "9", "20"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if back := c.Recipe; back.Samples.ClassNames[1] != "b" || back.Batch != batch ||
		back.Model.Settings.(map[string]any)["classes"] != json.Number("3") {
		t.Errorf("%+v", back)
	}
	r.LRSchedule.Settings = map[string]any{"warmup": 2, "schedule-steps": 20}
	var mismatch *train.MismatchError
	if err := c.Check(r, network()); !errors.As(err, &mismatch) ||
		mismatch.Field != "schedule.settings.warmup" {
		t.Error(err)
	}
}

// phases freezes the body of the network at first, with its batch norm as in evaluation, trains all
// of it from a step on, and freezes the head after another. Before each step it is called with the
// steps that are done, in a resumed run as well.
func phases(m *nn.Sequential, done int64) {
	nn.Unfreeze(m)
	nn.Train(m)
	switch {
	case done < 4:
		nn.Freeze(m.Slice(0, 6))
		nn.Eval(m.Slice(0, 6))
	case done >= 7:
		nn.Freeze(m.Slice(7, 8))
	}
}

// tuned runs a rig in phases, to the step given.
func tuned(t *testing.T, s *rig, from, to int64) {
	t.Helper()
	phases(s.model, from)
	s.Steps, s.ClipNorm = 9, 1
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.OnStep = []train.Hook{func(i train.StepInfo) error {
		if phases(s.model, i.Step); i.Step == to {
			cancel()
		}
		return nil
	}}
	must.Get(s.Run(ctx))(t)
}

// A run of which parts are frozen, and unfrozen later, goes on from a checkpoint as if it had not
// ended: with or without the body's gradients ever made, on other stages.
func TestResumeWithFrozenParts(t *testing.T) {
	for _, o := range []setup{
		{optimizer: "sgd", config: optim.Config{LR: 0.05, Momentum: 0.9, WeightDecay: 1e-3}},
		{optimizer: "adamw", config: optim.Config{LR: 0.01, WeightDecay: 0.1}},
		{optimizer: "rmsprop", config: optim.Config{LR: 0.001, Momentum: 0.5, Centered: true}},
	} {
		check(t)
		whole, closer := newRig(t, o)
		tuned(t, whole, 0, 9)
		want := sumOf(whole.model)
		closer()
		// frozen; about to be unfrozen; unfrozen; with the head frozen
		for _, at := range []int64{2, 4, 5, 8} {
			t.Run(fmt.Sprintf("%s from step %d", o.optimizer, at), func(t *testing.T) {
				check(t)
				store := train.Store{Dir: t.TempDir()}
				o.balance = []int{3, 5}
				first, closer := newRig(t, o)
				tuned(t, first, 0, at)
				save(t, store, first)
				closer()
				o.balance = []int{2, 4, 2}
				c := latest(t, store)
				o.start = c.Progress
				second, _ := newRig(t, o)
				if at%2 == 0 {
					phases(second.model, at) // before or after the weights are there
				}
				if err := c.Restore(second.Pipe, second.Optimizer); err != nil || second.Step != at {
					t.Fatalf("resumed at step %d: %v", second.Step, err)
				}
				o.start = train.Progress{}
				tuned(t, second, at, 9)
				if got := sumOf(second.model); got != want {
					t.Error("the weights are not those of a run that was not interrupted")
				}
			})
		}
	}
}

// all is the state of a run: the model's, with running statistics, and the optimizer's, with its
// counts.
func (s *rig) all() map[string]string {
	out := map[string]string{}
	for _, p := range nn.State(s.model) {
		out[p.Name] = string(torch.Bytes(p.Tensor()))
	}
	for _, t := range s.Optimizer.State() {
		out["state "+t.Name] = string(torch.Bytes(t.Tensor))
	}
	for name, n := range s.Optimizer.Steps() {
		out["steps "+name] = string(rune(n))
	}
	return out
}

// A step that does not fit the limit of one stage's device, be it in the update or before, changes
// nothing on any; when it is repeated under a higher limit the run has the bits of one that was
// never refused.
func TestRefusedStepChangesNothing(t *testing.T) {
	for _, row := range []struct {
		balance []int
		limited int // the device
		clip    float64
	}{{nil, 0, 0.1}, {[]int{4, 4}, 1, 0.1}, {[]int{1, 4, 3}, 1, 0}, {nil, 0, 0}, {[]int{4, 4}, 0, 0}} {
		if row.limited == 0 && row.clip == 0 && !draws.Full {
			continue
		}
		check(t)
		o := setup{balance: row.balance, devices: testDevices(3), optimizer: "adam",
			config: optim.Config{LR: 0.01, WeightDecay: 0.1}}
		plain, closePlain := newRig(t, o)
		refused, closeRefused := newRig(t, o)
		plain.ClipNorm, refused.ClipNorm = row.clip, row.clip
		updating, d := 0, torchtest.Device(row.limited)
		for step := range int64(3) {
			plain.Steps, refused.Steps = step+1, step+1
			plain.run(t)
			before, at, live := refused.all(), refused.Progress(), d.Memory().Live
			for limit := live; ; {
				d.SetLimit(limit)
				_, err := refused.Run(context.Background())
				d.SetLimit(0)
				if err == nil {
					break
				}
				var memory *torch.MemoryError
				var failed *train.StepError
				if !errors.As(err, &memory) || !errors.As(err, &failed) || failed.Half() {
					t.Fatal(err)
				}
				if strings.Contains(err.Error(), "updating the parameters") {
					updating++
				}
				for name, value := range refused.all() {
					if before[name] != value {
						t.Fatalf("%+v, %v: %s has changed", row, err, name)
					}
				}
				if got := refused.Progress(); got != at {
					t.Fatalf("%+v, %v: the run stands at %+v, before at %+v", row, err, got, at)
				}
				// where a step takes longer
				if limit = memory.Live + memory.Requested; d.Kind != torch.KindCPU {
					limit += (limit - live) / 8
				}
			}
			if !maps.Equal(refused.all(), plain.all()) {
				t.Fatalf("%+v, step %d: other bits than a run that was never refused", row, step)
			}
		}
		if updating == 0 {
			t.Errorf("%+v: no update was refused", row)
		}
		closePlain()
		closeRefused()
	}
}

// TestParamsSHA256 writes the bytes of the definition down by hand.
func TestParamsSHA256(t *testing.T) {
	check(t)
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	model := nn.NewSequential(nn.NewBatchNorm1d(2, nn.BatchNormConfig{}))
	nn.Materialise(c, nn.State(model), 1)
	defer nn.Free(model)

	var want []byte
	tensor := func(name string, shape []int64, elements ...uint32) {
		want = append(append(want, name...), 0)
		want = binary.LittleEndian.AppendUint64(want, uint64(len(shape)))
		for _, size := range shape {
			want = binary.LittleEndian.AppendUint64(want, uint64(size))
		}
		for _, e := range elements {
			want = binary.LittleEndian.AppendUint32(want, e)
		}
	}
	one := math.Float32bits(1)
	tensor("0.bias", []int64{2}, 0, 0)
	tensor("0.num_batches_tracked", nil, 0, 0) // an int64
	tensor("0.running_mean", []int64{2}, 0, 0)
	tensor("0.running_var", []int64{2}, one, one)
	tensor("0.weight", []int64{2}, one, one)
	sum := sha256.Sum256(want)
	if got := sumOf(model); got != hex.EncodeToString(sum[:]) {
		t.Errorf("got %s, want %x", got, sum)
	}
}
