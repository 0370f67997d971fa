package torch_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

// ReLU gives the bits of aten::relu, also of what is no number, and so does its gradient.
func TestReLUIsAtens(t *testing.T) {
	negativeZero := float32(math.Copysign(0, -1))
	special := []float32{0, negativeZero, 1, -1, float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 1e-42, -1e-42}
	for _, shape := range [][]int64{{}, {1}, {9}, {2, 17}, {3, 32, 5}, {200, 200}} {
		for _, transposed := range []bool{false, true} {
			t.Run(fmt.Sprint(shape, transposed), func(t *testing.T) {
				c := torchtest.New(t, torch.Options{Grad: true, Threads: 1, Seed: 3})
				draw := func(values []float32) *torch.Tensor {
					x := c.Normal_(c.Empty(torch.Float32, shape...), 0, 1)
					flat := c.Reshape(x, -1)
					for i := range min(int64(len(values)), flat.Size(0)) {
						c.Copy_(c.Narrow(flat, 0, i, 1), torch.From(c, values[i:i+1], 1))
					}
					if transposed && len(shape) > 1 {
						x = c.Transpose(x, 0, 1)
					}
					return x
				}
				x, g := draw(special), draw(nil)
				a, b := c.Detach(x).SetRequiresGrad(true), c.Detach(x).SetRequiresGrad(true)
				y, z := c.ReLU(a), c.Call("aten::relu", "", b)[0].(*torch.Tensor)
				c.Backward([]*torch.Tensor{y}, []*torch.Tensor{g}, false)
				c.Backward([]*torch.Tensor{z}, []*torch.Tensor{g}, false)
				sameBits(t, "result", y, z)
				sameBits(t, "gradient", c.GradOf(a), c.GradOf(b))
				a.SetGradOf(nil)
				b.SetGradOf(nil)
			})
		}
	}
}

// sameBits compares the bits of two tensors.
func sameBits(t *testing.T, what string, a, b *torch.Tensor) {
	t.Helper()
	if string(torch.Bytes(a)) != string(torch.Bytes(b)) {
		t.Errorf("%s: other bits", what)
	}
}

// On a CPU a linear layer whose products are small has the bits of aten::linear: of its output, and of the
// gradients of its arguments, but for that of the weight of later micro-batches, which is added to
// where it lies.
func TestSmallLinearHasTheBitsOfAtens(t *testing.T) {
	c := torchtest.New(t, torch.Options{Device: torch.CPU(1), Grad: true, Threads: 1, Seed: 3})
	draw := func(shape ...int64) *torch.Tensor { return c.Normal_(c.Empty(torch.Float32, shape...), 0, 1) }
	for _, rows := range []int64{1, 2, 15, 16, 17, 31, 33, 256, 257, 273, 300} {
		for _, out := range []int64{1, 2, 5, 31, 64, 70, 128} {
			for _, in := range []int64{1, 2, 9} {
				mark := c.Mark()
				ours := linearArguments{weight: draw(out, in), bias: draw(out)}
				theirs := ours.copied(c)
				ours.train()
				theirs.train()
				for i := range 3 {
					x, g := draw(rows, in), draw(rows, out)
					a, b := c.Clone(x).SetRequiresGrad(true), c.Clone(x).SetRequiresGrad(true)
					y, z := c.Linear(a, ours.weight, ours.bias), c.AtenLinear(b, theirs.weight, theirs.bias)
					c.Backward([]*torch.Tensor{y}, []*torch.Tensor{g}, false)
					c.Backward([]*torch.Tensor{z}, []*torch.Tensor{g}, false)
					what := fmt.Sprintf("%d x %d x %d, micro-batch %d, ", rows, out, in, i)
					sameBits(t, what+"output", y, z)
					if rows > 1 || in > 1 { // the product of a row and a column
						sameBits(t, what+"input", c.GradOf(a), c.GradOf(b))
					}
					sameBits(t, what+"bias", c.GradOf(ours.bias), c.GradOf(theirs.bias))
					if i == 0 {
						sameBits(t, what+"weight", c.GradOf(ours.weight), c.GradOf(theirs.weight))
					}
					a.SetGradOf(nil)
					b.SetGradOf(nil)
				}
				ours.drop()
				theirs.drop()
				c.Release(mark)
			}
		}
	}
}

// A backward through one path gives the gradients that it gives beside another root, where
// libtorch's engine runs it: of leaves that one layer uses, and of one that two layers use.
func TestBackwardAlongAPathIsTheEngines(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true, Threads: 1, Seed: 3})
	draw := func(shape ...int64) *torch.Tensor { return c.Normal_(c.Empty(torch.Float32, shape...), 0, 1) }
	const width = 24
	var leaves, inputs, outGrads []*torch.Tensor
	for range 3 {
		inputs, outGrads = append(inputs, draw(7, width)), append(outGrads, draw(7, width))
		leaves = append(leaves, draw(width, width), draw(width), draw(width))
	}
	for _, shared := range []bool{false, true} {
		for _, keep := range []bool{false, true} {
			gradients := func(others int) (bits []string) {
				var mine []*torch.Tensor
				for _, l := range leaves {
					mine = append(mine, c.Clone(l).SetRequiresGrad(true))
				}
				if shared {
					mine[4] = mine[1]
				}
				for i := range 3 {
					x := c.Clone(inputs[i]).SetRequiresGrad(true)
					y := x
					for k := 0; k < len(mine); k += 3 {
						y = c.Mul(c.ReLU(c.Linear(y, mine[k], mine[k+1])), mine[k+2])
					}
					roots, grads := []*torch.Tensor{y}, []*torch.Tensor{outGrads[i]}
					for range others {
						roots = append(roots, c.Mul(draw(1).SetRequiresGrad(true), draw(1)))
						grads = append(grads, c.Ones(torch.Float32, 1))
					}
					c.Backward(roots, grads, keep)
					bits = append(bits, string(torch.Bytes(c.TakeGrad(x))))
				}
				for _, l := range mine {
					if l.HasGrad() {
						bits = append(bits, string(torch.Bytes(c.TakeGrad(l))))
					}
				}
				return bits
			}
			path, engine := gradients(0), gradients(1)
			if fmt.Sprint(path) != fmt.Sprint(engine) {
				t.Errorf("shared %v, keep %v: other bits", shared, keep)
			}
		}
	}
}

// A backward that lacks memory says in which node and operator, also where no operator of libtorch allocates.
func TestSmallBackwardsNameWhatLacksMemory(t *testing.T) {
	for name, of := range map[string]func(c *torch.Ctx, x, w *torch.Tensor) *torch.Tensor{
		"LinearBackward": func(c *torch.Ctx, x, w *torch.Tensor) *torch.Tensor { return c.Linear(x, w, nil) },
		"ReluBackward":   func(c *torch.Ctx, x, _ *torch.Tensor) *torch.Tensor { return c.ReLU(x) },
	} {
		t.Run(name, func(t *testing.T) {
			device := torchtest.Device(3)
			c := torchtest.New(t, torch.Options{Device: device, Grad: true, Threads: 1})
			draw := func(shape ...int64) *torch.Tensor { return c.Normal_(c.Empty(torch.Float32, shape...), 0, 1) }
			x, w := draw(64, 64).SetRequiresGrad(true), draw(64, 64)
			y := of(c, x, w)
			g := c.OnesLike(y)
			device.SetLimit(device.Memory().Live + 64)
			defer device.SetLimit(0)
			err := torch.Try(func() { c.Backward([]*torch.Tensor{y}, []*torch.Tensor{g}, false) })
			device.SetLimit(0)
			if e, ok := err.(*torch.Error); !ok || !errors.Is(e, torch.ErrOutOfMemory) || !strings.Contains(e.Op, name) || !strings.Contains(e.Op, "aten::empty") {
				t.Errorf("%v", err)
			}
			c.Backward([]*torch.Tensor{of(c, x, w)}, []*torch.Tensor{g}, false)
			x.SetGradOf(nil)
		})
	}
}
