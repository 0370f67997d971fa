package segment_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	_ "penstock.example/internal/draws" // sets the number of draws
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/segment"
	"penstock.example/torch"
)

// persistent draws a plan of units i..l, of which the last, if it is loss, is the loss: either the first is saved, or some are run without a graph and run again.
func persistent(t *rapid.T, i, l, loss int) []remat.Op {
	if i == loss {
		return []remat.Op{{Kind: remat.LossStep}}
	}
	if i == l || rapid.Bool().Draw(t, "save") {
		ops := []remat.Op{{Kind: remat.ForwardSave, Layer: i}}
		if i < l {
			ops = append(ops, persistent(t, i+1, l, loss)...)
		}
		return append(ops, remat.Op{Kind: remat.Backward, Layer: i})
	}
	j := rapid.IntRange(i+1, l).Draw(t, "up to")
	ops := []remat.Op{{Kind: remat.ForwardKeep, Layer: i}}
	for k := i + 1; k < j; k++ {
		ops = append(ops, remat.Op{Kind: remat.Forward, Layer: k})
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
		if diff := cmp.Diff(want[backwards], executed(t, m, s, ops, backwards)); diff != "" {
			t.Errorf("units %v, %s, %d backwards: %s", units, remat.FormatOps(ops), backwards, diff)
		}
	})
}

// TestOperationsThatCannotBe: what a plan must not ask for fails as an operator does, says why, and leaves an execution that can be freed.
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
			e := begin(whole(t, m, 4, 6, 4), training, c.Keep(c.Ones(torch.Float32, 6, 8)))
			defer e.Free()
			ops, err := remat.ParseOps(tt.ops)
			if err != nil {
				t.Fatal(err)
			}
			err = torch.Try(func() {
				for _, op := range ops {
					e.Do(c, op)
				}
			})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// TestFailuresLeaveNothing: wherever memory runs out, in forward, in a repetition or in backward, an execution frees everything.
func TestFailuresLeaveNothing(t *testing.T) {
	ops, err := remat.ParseOps("K0 F1 S2 L B2 K0 S1 B1 S0 B0")
	if err != nil {
		t.Fatal(err)
	}
	failed, device := 0, torchtest.Device(1)
	for room := int64(0); ; room += 400 {
		done := false
		t.Run("", func(t *testing.T) {
			c := torchtest.New(t, torch.Options{Device: device, Seed: 3, Threads: 1})
			m := network()
			nn.Materialise(c, nn.State(m), 1)
			defer nn.Free(m)
			ones := c.Keep(c.Ones(torch.Float32, 6, 8))
			e := begin(whole(t, m, 4, 6, 4), training, c.Keep(c.Ones(torch.Float32, 6, 8)))
			defer e.Free()
			device.SetLimit(device.Memory().Live + room + 1)
			defer device.SetLimit(0)
			err := torch.Try(func() {
				for _, op := range ops {
					e.Do(c, op)
					if op.Kind == remat.LossStep {
						e.GiveGrads(3, []*torch.Tensor{ones}, nil)
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

// TestLossIsAUnit: the loss, as a layer of its own or at the end of a unit, is kept and repeated like any other, and gives the bits of a loss that is computed after the model.
func TestLossIsAUnit(t *testing.T) {
	torchtest.Check(t)
	run := func(units []int, text string) map[string]string {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		c := torch.NewCtx(torch.Options{Device: torchtest.Device(0), Threads: 1, Seed: 3})
		defer c.Close()
		m := network()
		nn.Materialise(c, nn.State(m), 1)
		defer nn.Free(m)
		x := c.Normal_(c.Empty(torch.Float32, 6, 8), 0, 1)
		cfg := nn.Config{Training: true, Seed: 5, Loss: nn.MSE(), Target: []*torch.Tensor{c.Ones(torch.Float32, 6, 8)}}
		if units == nil {
			c.SetGrad(true)
			n := nn.NewCtx(c, cfg)
			y := nn.RunLoss(n, cfg.Loss, []*torch.Tensor{m.Forward(n, x)}, cfg.Target)
			c.Backward([]*torch.Tensor{y}, []*torch.Tensor{nil}, false)
			return trained(m, y)
		}
		routes, err := m.SkipRoutes()
		if err != nil {
			t.Fatal(err)
		}
		layers := append(m.Layers(), nn.LossLayer())
		s, err := segment.New(segment.Config{Layers: layers, Routes: routes, Last: len(layers), Units: units})
		if err != nil {
			t.Fatal(err)
		}
		e := begin(s, func(c *torch.Ctx, run segment.Run) *nn.Ctx {
			cfg := cfg
			cfg.Checkpointing, cfg.Recomputing, cfg.Spans, cfg.Skips = run.More, run.Again, run.Graph, run.Skips
			return nn.NewCtx(c, cfg)
		}, c.Keep(x))
		defer e.Free()
		ops, err := remat.ParseOps(text)
		if err != nil {
			t.Fatal(err)
		}
		var loss *torch.Tensor
		for _, op := range ops {
			e.Do(c, op)
			if op.Kind == remat.LossStep {
				ys, _, saved := e.Output()
				if !saved {
					ys, _ = e.Take(s.Units())
					defer ys[0].Free()
				}
				loss = c.Clone(c.Detach(ys[0]))
				e.GiveGrads(s.Units(), []*torch.Tensor{c.Keep(c.OnesLike(loss))}, nil)
			}
		}
		return trained(m, loss)
	}
	want := run(nil, "")
	for _, tt := range []struct {
		units []int
		ops   string
	}{
		{[]int{15}, "S0 L B0"}, {[]int{15}, "K0 L S0 B0"},
		{[]int{4, 10, 1}, "S0 S1 S2 L B2 B1 B0"}, {[]int{4, 10, 1}, "K0 F1 F2 L S0 S1 S2 B2 B1 B0"}, {[]int{4, 10, 1}, "K0 F1 K2 L S2 B2 K0 S1 B1 S0 B0"},
	} {
		if diff := cmp.Diff(want, run(tt.units, tt.ops)); diff != "" {
			t.Errorf("units %v, %s: %s", tt.units, tt.ops, diff)
		}
	}
}
