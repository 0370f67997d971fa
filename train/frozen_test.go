package train_test

import (
	"context"
	"fmt"
	"testing"

	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/torch"
	"penstock.example/train"
)

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
	if _, err := s.Run(ctx); err != nil {
		t.Fatal(err)
	}
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
		want := train.ParamsSHA256(whole.model)
		closer()
		for _, at := range []int64{2, 4, 5, 8} { // frozen; about to be unfrozen; unfrozen; with the head frozen
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
				if got := train.ParamsSHA256(second.model); got != want {
					t.Error("the weights are not those of a run that was not interrupted")
				}
			})
		}
	}
}

// What is frozen, and what only runs as in evaluation, is in the checkpoint as it was at the start.
func TestAFrozenBodyStays(t *testing.T) {
	check(t)
	s, _ := newRig(t, setup{balance: []int{3, 5}, optimizer: "adamw", config: optim.Config{LR: 0.01, WeightDecay: 0.1}})
	before := map[string]string{}
	for _, p := range nn.State(s.model) {
		before[p.Name] = string(torch.Bytes(p.Tensor()))
	}
	tuned(t, s, 0, 3)
	store := train.Store{Dir: t.TempDir()}
	save(t, store, s)
	again, _ := resume(t, store, setup{optimizer: "adamw", config: optim.Config{LR: 0.01, WeightDecay: 0.1}})
	for _, p := range nn.State(again.model) {
		body := p.Name[0] < '7'
		if body != (before[p.Name] == string(torch.Bytes(p.Tensor()))) {
			t.Errorf("%s is as at the start: %v", p.Name, !body)
		}
	}
}
