package segment_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock/internal/torchtest"
	"penstock/nn"
	"penstock/remat/plan"
	"penstock/segment"
	"penstock/torch"
)

// persistent draws a plan of units i..l, of which the last, if it is loss, is the loss: either the first is saved, or some are run without a graph and run again.
func persistent(t *rapid.T, i, l, loss int) []plan.Op {
	if i == loss {
		return []plan.Op{{Kind: plan.LossStep}}
	}
	if i == l || rapid.Bool().Draw(t, "save") {
		ops := []plan.Op{{Kind: plan.ForwardSave, Layer: i}}
		if i < l {
			ops = append(ops, persistent(t, i+1, l, loss)...)
		}
		return append(ops, plan.Op{Kind: plan.Backward, Layer: i})
	}
	j := rapid.IntRange(i+1, l).Draw(t, "up to")
	ops := []plan.Op{{Kind: plan.ForwardKeep, Layer: i}}
	for k := i + 1; k < j; k++ {
		ops = append(ops, plan.Op{Kind: plan.Forward, Layer: k})
	}
	return append(append(ops, persistent(t, j, l, loss)...), persistent(t, i, j-1, loss)...)
}

// cuts draws units of a model's layers. A layer that works in place is not cut off from the one before, as the input of a unit stays.
func cuts(t *rapid.T, layers []nn.NamedLayer) (units []int) {
	for i, l := range layers {
		inPlace, ok := l.Layer.(nn.InPlace)
		if i == 0 || !(ok && inPlace.OverwritesInput()) && rapid.Bool().Draw(t, "cut") {
			units = append(units, 0)
		}
		units[len(units)-1]++
	}
	return units
}

// TestAnyPlanGivesTheSameBits: outputs, gradients, running statistics and dropped elements do not depend on the units, nor on what is kept and what is run again, once or twice.
func TestAnyPlanGivesTheSameBits(t *testing.T) {
	torchtest.Check(t)
	want := map[int]map[string]string{1: plain(network(), 1), 2: plain(network(), 2)}
	rapid.Check(t, func(t *rapid.T) {
		m := network()
		units := cuts(t, m.Layers())
		s := whole(t, m, units...)
		ops := persistent(t, 0, len(units), len(units))
		backwards := rapid.IntRange(1, 2).Draw(t, "backwards")
		if diff := cmp.Diff(want[backwards], walked(t, m, s, ops, backwards)); diff != "" {
			t.Errorf("units %v, %s, %d backwards: %s", units, plan.FormatOps(ops), backwards, diff)
		}
	})
}

// TestOperationsThatCannotBe: what a plan must not ask for fails as an operator does, says why, and leaves a walk that can be freed.
func TestOperationsThatCannotBe(t *testing.T) {
	for _, tt := range []struct{ ops, want string }{
		{"B0", "unit 0 goes back and has no graph"},
		{"F1", "unit 1 is run and has no input"},
		{"K0 K0", "unit 0 computes what is still there"},
		{"S0 S0", "unit 0 computes what is still there"},
		{"K0 F1 S1", "unit 1 is run and has no input"},
		{"S7", "there are 3 units"},
	} {
		t.Run(tt.ops, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{Seed: 3})
			m := network()
			nn.Materialise(c, nn.State(m), 1)
			defer nn.Free(m)
			var w segment.Walk
			w.Begin(whole(t, m, 4, 6, 4))
			defer w.Free()
			ops, err := plan.ParseOps(tt.ops)
			if err != nil {
				t.Fatal(err)
			}
			d := driver{c.Ones(torch.Float32, 6, 8)}
			err = torch.Try(func() {
				for _, op := range ops {
					w.Do(c, d, op)
				}
			})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// TestFailuresLeaveNothing: wherever memory runs out, in forward, in a repetition or in backward, a walk lets go of everything.
func TestFailuresLeaveNothing(t *testing.T) {
	ops, err := plan.ParseOps("K0 F1 S2 L B2 K0 S1 B1 S0 B0")
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for room := int64(0); ; room += 400 {
		done := false
		t.Run("", func(t *testing.T) {
			c := torchtest.New(t, torch.Options{Device: torch.CPU(1), Seed: 3, Threads: 1})
			m := network()
			nn.Materialise(c, nn.State(m), 1)
			defer nn.Free(m)
			d := driver{c.Ones(torch.Float32, 6, 8)}
			ones := c.Keep(c.Ones(torch.Float32, 6, 8))
			var w segment.Walk
			w.Begin(whole(t, m, 4, 6, 4))
			defer w.Free()
			torch.CPU(1).SetLimit(torch.CPU(1).Memory().Live + room + 1)
			defer torch.CPU(1).SetLimit(0)
			err := torch.Try(func() {
				for _, op := range ops {
					w.Do(c, d, op)
					if op.Kind == plan.LossStep {
						w.GiveGrads(3, []*torch.Tensor{ones}, nil)
					}
				}
			})
			switch {
			case err == nil:
				done = true
			case !errors.Is(err, torch.ErrOutOfMemory):
				t.Errorf("with %d bytes: %v", room, err)
			default:
				failed++
			}
			ones.Free()
		})
		if done || t.Failed() {
			break
		}
	}
	if failed < 5 {
		t.Errorf("memory ran out %d times, want it to at many points", failed)
	}
}
