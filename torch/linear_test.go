package torch_test

import (
	"fmt"
	"math"
	"testing"

	"penstock/internal/torchtest"
	"penstock/torch"
)

// penstock::linear gives what aten::linear gives, over several micro-batches whose gradients add
// up: the first makes the gradient of the weight, later ones are added to it where it lies. The two
// sum in different orders, so gradients may differ by what rounding does to a sum; outputs may not
// differ at all.
func TestLinearIsAtensOverMicroBatches(t *testing.T) {
	const out, in, microBatches = 7, 12, 5
	for _, dtype := range []torch.DType{torch.Float32, torch.Float64} {
		for _, bias := range []bool{true, false} {
			for _, rows := range [][]int64{{9}, {3, 5}} {
				t.Run(fmt.Sprintf("%v/bias=%v/rows=%v", dtype, bias, rows), func(t *testing.T) {
					c := torchtest.New(t, torch.Options{Grad: true, Threads: 1, Seed: 3})
					draw := func(shape ...int64) *torch.Tensor { return c.Normal_(c.Empty(dtype, shape...), 0, 1) }
					ours := linearArguments{weight: draw(out, in)}
					if bias {
						ours.bias = draw(out)
					}
					theirs := ours.copied(c)
					ours.train()
					theirs.train()
					var where uintptr
					for i := range microBatches {
						x, g := draw(append(rows[:len(rows):len(rows)], in)...), draw(append(rows[:len(rows):len(rows)], out)...)
						a, b := c.Clone(x).SetRequiresGrad(true), c.Clone(x).SetRequiresGrad(true)
						y, z := c.Linear(a, ours.weight, ours.bias), c.PlainLinear(b, theirs.weight, theirs.bias)
						if string(torch.Bytes(y)) != string(torch.Bytes(z)) {
							t.Errorf("micro-batch %d: other outputs", i)
						}
						c.Backward([]*torch.Tensor{y}, []*torch.Tensor{g}, false)
						c.Backward([]*torch.Tensor{z}, []*torch.Tensor{g}, false)
						near(t, c, fmt.Sprintf("micro-batch %d, input", i), a, b)
						near(t, c, fmt.Sprintf("micro-batch %d, weight", i), ours.weight, theirs.weight)
						if bias {
							near(t, c, fmt.Sprintf("micro-batch %d, bias", i), ours.bias, theirs.bias)
						}
						memory, _ := c.GradOf(ours.weight).Storage()
						if i > 0 && memory != where {
							t.Errorf("micro-batch %d: the gradient of the weight was not added to where it lay", i)
						}
						where = memory
						a.SetGradOf(nil)
						b.SetGradOf(nil)
					}
					ours.drop()
					theirs.drop()
				})
			}
		}
	}
}

type linearArguments struct{ weight, bias *torch.Tensor }

func (l linearArguments) each(f func(t *torch.Tensor)) {
	f(l.weight)
	if l.bias != nil {
		f(l.bias)
	}
}

func (l linearArguments) copied(c *torch.Ctx) linearArguments {
	out := linearArguments{weight: c.Clone(l.weight)}
	if l.bias != nil {
		out.bias = c.Clone(l.bias)
	}
	return out
}

func (l linearArguments) train() { l.each(func(t *torch.Tensor) { t.SetRequiresGrad(true) }) }

func (l linearArguments) drop() { l.each(func(t *torch.Tensor) { t.SetGradOf(nil) }) }

// near compares the gradients of two tensors: they may differ by a few units in the last place of
// the largest element.
func near(t *testing.T, c *torch.Ctx, what string, a, b *torch.Tensor) {
	t.Helper()
	got, want := numbers(c.GradOf(a)), numbers(c.GradOf(b))
	largest := 0.0
	for _, v := range want {
		largest = max(largest, math.Abs(v))
	}
	ulp := math.Nextafter(1, 2) - 1
	if a.DType() == torch.Float32 {
		ulp = float64(math.Nextafter32(1, 2) - 1)
	}
	for i := range want {
		if off := math.Abs(got[i] - want[i]); !(off <= 8*ulp*largest) || len(got) != len(want) {
			t.Fatalf("%s: element %d of %d of the gradient is %v, want %v of %d", what, i, len(got), got[i], want[i], len(want))
		}
	}
}

func numbers(t *torch.Tensor) []float64 {
	if t.DType() == torch.Float64 {
		return torch.Values[float64](t)
	}
	var out []float64
	for _, v := range torch.Values[float32](t) {
		out = append(out, float64(v))
	}
	return out
}
