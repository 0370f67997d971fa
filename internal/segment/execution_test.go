package segment_test

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	_ "penstock.example/internal/draws" // sets the number of draws
	"penstock.example/internal/engine"
	"penstock.example/internal/must"
	"penstock.example/internal/segment"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/torch"
)

// persistent draws a plan of units i..l, of which the last, if it is loss, is the loss: either the
// first is saved, or some are run without a graph and run again.
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

// cuts draws units of a model's layers. A layer that works in place is not cut off from the one before,
// as the input of a unit stays.
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

// TestAnyPlanGivesTheSameBits: outputs, gradients, running statistics and dropped elements do not
// depend on the units, nor on what is kept and what is run again, once or twice.
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
			t.Errorf("units %v, %v, %d backwards: %s", units, ops, backwards, diff)
		}
	})
}

// TestOperationsThatCannotBe: what a plan must not ask for fails as an operator does, says why, and
// leaves an execution that can be freed.
func TestOperationsThatCannotBe(t *testing.T) {
	for _, tt := range []struct{ ops, want string }{
		{"B0", "unit 0 has no graph to go back through"},
		{"F1", "unit 1 has no input"},
		{"K0 K0", "unit 0 computes an output that still exists"},
		{"S0 S0", "unit 0 computes an output that still exists"},
		{"K0 F1 S1", "unit 1 has no input"},
		{"S7", "there are 3 units"},
	} {
		t.Run(tt.ops, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{Seed: 3})
			m := network()
			nn.Materialise(c, nn.State(m), 1)
			defer nn.Free(m)
			e := begin(whole(t, m, 4, 6, 4), training, c.Keep(c.Ones(torch.Float32, 6, 8)))
			defer e.Free()
			ops := must.Get(remat.ParseOps(tt.ops))(t)
			err := torch.Try(func() {
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

// TestFailuresLeaveNothing: wherever memory runs out, in forward, in a repetition or in backward, an
// execution frees everything.
func TestFailuresLeaveNothing(t *testing.T) {
	ops := must.Get(remat.ParseOps("K0 F1 S2 L B2 K0 S1 B1 S0 B0"))(t)
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

// TestBoundaries: which skips and ties lie at each boundary, and what a unit does to them.
func TestBoundaries(t *testing.T) {
	// stash a is layer 1 and its pops 8 and 11; stash b is 4, its pop 9; the weight is that of layers
	// 0, 3 and 12
	m := network()
	s := whole(t, m, 2, 2, 4, 2, 4)
	for i, want := range []string{"", "0 [3 4], ", "0 [3 4], ", "0 [3 4], 2 [3], ", "0 [4], ", ""} {
		got := ""
		for _, c := range s.Crossing(i) {
			got += fmt.Sprint(c.Stash, " ", c.Pops, ", ")
		}
		if got != want {
			t.Errorf("boundary %d: stash and pops to come %q, want %q", i, got, want)
		}
	}
	if s.Ties() != 1 || !slices.Equal(s.Uses(1), []int{0}) || s.Uses(2) != nil {
		t.Errorf("%d ties", s.Ties())
	}
	for boundary, want := range []int{0, 1, 1, 1, 1, 0} {
		if got := len(s.Tied(boundary)); got != want {
			t.Errorf("boundary %d: %d ties wait, want %d", boundary, got, want)
		}
	}
}

// TestSkipsWithoutAGradient: a skip that no trained layer has made gets no gradient, although there is a
// trained layer between its stash and its pop. A skip of the first trained layer gets one.
func TestSkipsWithoutAGradient(t *testing.T) {
	torchtest.Check(t)
	c := torch.NewCtx(torch.Options{Device: torchtest.Device(0), Threads: 1})
	defer c.Close()
	fc, b := nn.NewLinear(8, 8), stash("b").(*layer)
	b.Child("fc", fc)
	give := b.forward
	b.forward = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return give(c, fc.Forward(c, x)) }
	m := nn.NewSequential(stash("a"), b, nn.NewTanh(), nn.NewTanh(), pop("a"), pop("b"))
	nn.Materialise(c, nn.State(m), 1)
	defer nn.Free(m)
	e := begin(whole(t, m, 2, 2, 2), training, c.Keep(c.Ones(torch.Float32, 2, 8)))
	defer e.Free()
	for unit := range 3 {
		e.Do(c, remat.Op{Kind: remat.ForwardSave, Layer: unit})
	}
	e.Do(c, remat.Op{Kind: remat.LossStep})
	e.GiveGrads(3, []*torch.Tensor{c.Keep(c.Ones(torch.Float32, 2, 8))}, nil)
	e.Do(c, remat.Op{Kind: remat.Backward, Layer: 2})
	xs, skips := e.TakeGrads(2)
	if len(skips) != 2 || len(skips[1]) != 1 || skips[1][0] == nil ||
		slices.ContainsFunc(skips[0], func(g *torch.Tensor) bool { return g != nil }) {
		t.Errorf("gradients of the skips a and b: %v", skips)
	}
	torch.FreeAll(slices.Concat(append(skips, xs)...))
}

func TestNewRefuses(t *testing.T) {
	cfg := segment.Config{Layers: network().Layers(), Last: 14, Units: []int{13}}
	if _, err := segment.New(cfg); err == nil || !strings.Contains(err.Error(),
		"have 13 layers, the segment 14") {
		t.Error(err)
	}
}

// What a segment gives to other layers of the model has no gaps in its memory, and holds no other memory:
// its output, its skip and the gradient of its input, with a graph and without.
func TestWhatLeavesIsDense(t *testing.T) {
	torchtest.Check(t)
	const rows, wide = 3, 10
	// in the output, the skip and the gradient of x
	gaps := &layer{forward: func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		both := c.Cat([]*torch.Tensor{x, c.Detach(x)}, 1)
		c.Stash("s", c.Narrow(both, 1, 1, wide))
		return c.Narrow(both, 1, 2, wide)
	}}
	gaps.Stashes("s")
	m := nn.NewSequential(nn.NewTanh(), gaps, pop("s"))
	routes := must.Get(m.SkipRoutes())(t)
	d := torchtest.Device(1)
	c := torch.NewCtx(torch.Options{Device: d})
	defer c.Close()
	x := c.Randn(rows, wide)
	run := func(first, last int, kind remat.Kind) (outs []*torch.Tensor, e *segment.Execution) {
		s := must.Get(segment.New(segment.Config{Layers: m.Layers(), Routes: routes, First: first,
			Last: last, InputGrad: true}))(t)
		e = &segment.Execution{}
		e.Begin(s, training)
		e.Send(0, segment.Arrival{Tensors: []*torch.Tensor{c.Keep(c.Detach(x))}, Wants: []bool{true}})
		e.Do(c, remat.Op{Kind: kind})
		xs, skips, saved := e.Output()
		if saved != (kind == remat.ForwardSave) {
			t.Errorf("%v: saved is %v", kind, saved)
		}
		return append(xs[:1:1], skips...), e
	}
	var same []byte
	for _, kind := range []remat.Kind{remat.ForwardKeep, remat.ForwardSave} {
		before := d.Memory().Live
		outs, e := run(1, 2, kind)
		if held := d.Memory().Live - before; held != 2*rows*wide*4 {
			t.Errorf("%v: %d bytes are held, want those of two tensors of %d", kind, held, rows*wide*4)
		}
		var values []byte
		mark := c.Mark()
		for _, y := range outs {
			if !engine.Dense(y.Shape(), engine.Strides(c, y)) {
				t.Errorf("%v: %v has strides %v", kind, y, engine.Strides(c, y))
			}
			values = append(values, torch.Bytes(c.Detach(y))...)
		}
		c.Release(mark)
		if same == nil {
			same = values
		} else if !bytes.Equal(values, same) {
			t.Errorf("%v gives other values", kind)
		}
		if kind == remat.ForwardSave {
			e.Do(c, remat.Op{Kind: remat.LossStep})
			ones := func() *torch.Tensor { return c.Keep(c.Ones(torch.Float32, rows, wide)) }
			e.GiveGrads(1, []*torch.Tensor{ones()}, [][]*torch.Tensor{{ones()}})
			e.Do(c, remat.Op{Kind: remat.Backward})
			grads, _ := e.TakeGrads(0)
			if g := grads[0]; !engine.Dense(g.Shape(), engine.Strides(c, g)) {
				t.Errorf("the gradient %v has strides %v", g, engine.Strides(c, g))
			}
			if held := d.Memory().Live - before; held != rows*wide*4 {
				t.Errorf("after the backward %d bytes are held, want those of the gradient, %d", held, rows*wide*4)
			}
			torch.FreeAll(grads)
		}
		e.Free()
	}
}

// Two units of two layers each: the first keeps its input alone, and is run again before its backward.
func Example() {
	model := nn.NewSequential(nn.NewLinear(4, 8), nn.NewTanh(), nn.NewLinear(8, 8), nn.NewTanh())
	defer nn.Free(model)
	c := torch.NewCtx(torch.Options{Seed: 1})
	defer c.Close()
	nn.Materialise(c, nn.State(model), 1)
	layers := model.Layers()
	s, err := segment.New(segment.Config{Layers: layers, Last: len(layers), Units: []int{2, 2}})
	if err != nil {
		log.Fatal(err)
	}
	ops, err := remat.ParseOps("K0 S1 L B1 S0 B0")
	if err != nil {
		log.Fatal(err)
	}
	var e segment.Execution
	defer e.Free()
	e.Begin(s, func(c *torch.Ctx, run segment.Run) *nn.Ctx {
		return nn.NewCtx(c, nn.Config{Training: true, Checkpointing: run.More, Recomputing: run.Again,
			Spans: run.Graph, Skips: run.Skips})
	})
	e.Send(0, segment.Arrival{Tensors: []*torch.Tensor{c.Keep(c.Randn(3, 4))}})
	for _, op := range ops {
		if op.Kind == remat.LossStep { // here the output's sum
			output, _, _ := e.Output()
			e.GiveGrads(e.Units(), []*torch.Tensor{c.Keep(c.Op("aten::ones_like", output[0]))}, nil)
			continue
		}
		e.Do(c, op)
	}
	for _, p := range nn.Params(model) {
		fmt.Println(p.Name, c.GradOf(p.Tensor()) != nil)
	}
	// Output:
	// 0.weight true
	// 0.bias true
	// 2.weight true
	// 2.bias true
}
