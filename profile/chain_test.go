package profile_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"penstock.example/internal/draws"
	"penstock.example/internal/must"
	"penstock.example/internal/segment"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/profile"
	"penstock.example/remat"
	"penstock.example/torch"
)

// training makes contexts as profile does.
func training(c *torch.Ctx, run segment.Run) *nn.Ctx {
	return nn.NewCtx(c, nn.Config{Training: true, Checkpointing: run.More, Recomputing: run.Again,
		Spans: run.Graph, Skips: run.Skips})
}

// chainOf measures a model in one stage.
func chainOf(t *testing.T, d torch.Device, model *nn.Sequential, sample ...*torch.Tensor) profile.Chain {
	t.Helper()
	return measured(t, model, profile.Config{Device: d, BytesOnly: true,
		Balance: []int{len(model.Layers())}}, sample...).Chains[0]
}

// begun begins an execution of a model's units with a kept input, and runs the prologue.
func begun(t *testing.T, c *torch.Ctx, model *nn.Sequential, chain profile.Chain,
	x *torch.Tensor) (e *segment.Execution) {
	t.Helper()
	routes := must.Get(model.SkipRoutes())(t)
	layers := model.Layers()
	s := must.Get(segment.New(segment.Config{Layers: layers, Routes: routes, Last: len(layers),
		Units: chain.Units}))(t)
	e = &segment.Execution{}
	e.Begin(s, training)
	e.Send(0, segment.Arrival{Tensors: []*torch.Tensor{x}, Wants: []bool{false}})
	for i := range chain.Prologue {
		e.Do(c, remat.Op{Kind: remat.Forward, Layer: i})
	}
	return e
}

// executed runs operations on a model from an input of its own, with ones for gradients of the
// output, and returns the most bytes beside what there was before the prologue's output.
func executed(t *testing.T, d torch.Device, model *nn.Sequential, chain profile.Chain, ops []remat.Op,
	sample *torch.Tensor) (peaks []int64) {
	t.Helper()
	c := torch.NewCtx(torch.Options{Device: d})
	defer c.Close()
	before := d.Memory().Live
	e := begun(t, c, model, chain, c.Keep(c.CopyHere(sample)))
	defer e.Free()
	for _, op := range ops {
		op.Layer += chain.Prologue
		c.Device().ResetPeak()
		e.Do(c, op)
		if op.Kind == remat.LossStep {
			xs, _, saved := e.Output()
			if !saved {
				xs, _ = e.Take(e.Units())
			}
			var grads []*torch.Tensor
			for _, x := range xs {
				grads = append(grads, c.Keep(c.Op("aten::ones_like", x)))
			}
			if !saved {
				torch.FreeAll(xs)
			}
			e.GiveGrads(e.Units(), grads, nil)
		}
		peaks = append(peaks, c.Device().Memory().Peak-before)
		c.Release(0)
	}
	return peaks
}

// TestPeaksAreAsPredicted: the account sees what the chain says of each plan, to the byte.
func TestPeaksAreAsPredicted(t *testing.T) {
	for _, network := range networks {
		t.Run(network.name, func(t *testing.T) {
			c := deviceCtx(t)
			predicted(t, c.Device(), network.build(), network.input(c))
		})
	}
}

func TestPeaksOfModels(t *testing.T) {
	for _, m := range known {
		if !draws.Full && slices.Contains([]string{"resnet18", "resnet50", "vgg11_bn"}, m.name) {
			continue // large
		}
		t.Run(m.name, func(t *testing.T) {
			torchtest.Check(t)
			c := torch.NewCtx(torch.Options{Device: torch.CPU(3), Seed: 1})
			defer c.Close()
			predicted(t, torch.CPU(0), build(t, m.name, m.options), inputOf(t, c, m.name))
		})
	}
}

func predicted(t *testing.T, d torch.Device, model *nn.Sequential, sample *torch.Tensor) {
	t.Helper()
	runtime.LockOSThread() // libtorch allocates what each thread that convolves keeps
	defer runtime.UnlockOSThread()
	chain := chainOf(t, d, model, sample)
	n := len(chain.Layers)
	plans := map[string][]remat.Op{"none": remat.None(n), "all": remat.All(n)}
	for _, k := range []int{2, 3} {
		if k <= n {
			ops := must.Get(remat.Sequential(n, k))(t)
			plans[fmt.Sprint("sequential ", k)] = ops
		}
	}
	c := torch.NewCtx(torch.Options{Device: d})
	defer c.Close()
	nn.Materialise(c, nn.State(model), 1)
	defer nn.Free(model)
	for name, ops := range plans {
		report := must.Get(remat.Check(chain.Chain, ops))(t)
		nn.ZeroGrads(model)
		peaks := executed(t, d, model, chain, ops, sample)
		if got := slices.Max(peaks); got != report.Peak {
			t.Errorf("%s: %d bytes, predicted %d at operation %d %v; measured %d there, most at "+
				"%d; units %v", name, got, report.Peak, report.PeakOp, ops[report.PeakOp],
				peaks[report.PeakOp], slices.Index(peaks, got), chain.Units)
		}
		nn.ZeroGrads(model)
		nn.Free(model)
		nn.Materialise(c, nn.State(model), 1)
	}
}

// TestGradientsOfGivenTuples: of what a model is given, elements that are no floating-point numbers
// have no gradient, wanted or not, and those that are have one if it is wanted. In later stages the
// same holds of what they are sent.
func TestGradientsOfGivenTuples(t *testing.T) {
	const rows, width = 30, 8
	keep := func() nn.Layer { // the numbers, transformed, and the indices beside them
		l := nn.NewLinear(width, width)
		w := &layer{forward: func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
			return []*torch.Tensor{c.Run(xs[0], l), xs[1]}
		}}
		w.Child("linear", l)
		return nn.Tuple(w, w.ForwardTuple)
	}
	for _, wanted := range []bool{false, true} {
		c := deviceCtx(t)
		numbers, indices := c.Normal_(c.Empty(torch.Float32, rows, width), 0, 1),
			c.Reshape(tokens(c), rows, 1)
		model := nn.NewSequential(keep(), keep(), keep())
		chains := measured(t, model, profile.Config{Device: c.Device(), BytesOnly: true,
			Balance: []int{1, 2}, InputGrad: wanted}, numbers, indices).Chains
		for stage, want := range []int64{0, 4 * rows * width} {
			if stage == 0 && wanted {
				want = 4 * rows * width
			}
			if got := chains[stage]; got.InputGradient != want || got.InputTuple != (4*width+8)*rows {
				t.Errorf("wanted %v: stage %d is given %d bytes, whose gradients take %d, want %d", wanted,
					stage, got.InputTuple, got.InputGradient, want)
			}
		}
	}
}
