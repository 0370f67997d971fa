package train_test

import (
	"context"
	"errors"
	"maps"
	"testing"

	"penstock.example/internal/draws"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/torch"
	"penstock.example/train"
)

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
		o := setup{balance: row.balance, devices: torchtest.Devices(3), optimizer: "adam", config: optim.Config{LR: 0.01, WeightDecay: 0.1}}
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
				if failed.Part == train.Updating {
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
				if limit = memory.Live + memory.Requested; d.Kind != torch.KindCPU { // where a step takes longer
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
