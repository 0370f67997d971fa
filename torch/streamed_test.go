package torch_test

import (
	"fmt"
	"math"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

// Products of few rows and a weight are computed by kernels of our own where the core has AVX-512.
// Here they leave remainders of rows, of columns and of terms. They and the gradient of the weight are
// compared with float64, over two micro-batches.
func TestProductsOfFewRows(t *testing.T) {
	const least = 1 << 18 // multiply-adds, below which the BLAS computes
	sizes := [][3]int64{{128, 40, 70}, {129, 40, 70}, {90, 33, 1100}, {100, 17, 200}, {8, 64, 2100}, {33, 1100, 20}, {64, 7, 4099}, {2, 4099, 50}, {128, 3, 1030}}
	for rows := int64(1); rows <= 70; rows++ {
		in := []int64{1030, 517, 131, 67, 48, 144}[rows%6]
		sizes = append(sizes, [3]int64{rows, least/(rows*in) + 1, in})
	}
	for i, size := range sizes {
		rows, out, in := size[0], size[1], size[2]
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			c := torchtest.New(t, torch.Options{Grad: true, Threads: 1, Seed: uint64(i)})
			draw := func(shape ...int64) *torch.Tensor { return c.Normal_(c.Empty(torch.Float32, shape...), 0, 1) }
			ours := linearArguments{weight: draw(out, in)}
			if i%3 != 0 {
				ours.bias = draw(out)
			}
			double := func(x *torch.Tensor) *torch.Tensor { return c.Detach(c.To(x, torch.Float64)) }
			theirs := linearArguments{weight: double(ours.weight)}
			if ours.bias != nil {
				theirs.bias = double(ours.bias)
			}
			ours.train()
			theirs.train()
			for range 2 {
				x, dy := draw(rows, in), draw(rows, out)
				a, b := c.Clone(x).SetRequiresGrad(true), double(x).SetRequiresGrad(true)
				y, z := c.Linear(a, ours.weight, ours.bias), c.PlainLinear(b, theirs.weight, theirs.bias)
				rounded(t, "output", y, z)
				c.Backward([]*torch.Tensor{y}, []*torch.Tensor{dy}, false)
				c.Backward([]*torch.Tensor{z}, []*torch.Tensor{double(dy)}, false)
				rounded(t, "gradient of the input", c.GradOf(a), c.GradOf(b))
				rounded(t, "gradient of the weight", c.GradOf(ours.weight), c.GradOf(theirs.weight))
				a.SetGradOf(nil)
				b.SetGradOf(nil)
			}
			ours.drop()
			theirs.drop()
		})
	}
}

// rounded compares floats with what float64 gives: they differ by what rounding does to a sum of
// some thousand terms.
func rounded(t *testing.T, what string, x, exact *torch.Tensor) {
	t.Helper()
	within(t, what, x, exact, 4e-6)
}

// A product of few rows and a weight has the same bits whenever it is computed on the same number of
// threads. Penstock's kernels give these bits on any number of threads. A library's need not.
func TestProductsOfFewRowsOnThreads(t *testing.T) {
	torchtest.Check(t)
	for _, size := range [][3]int64{{8, 1030, 530}, {33, 530, 530}, {64, 515, 1100}, {50, 1500, 70}, {120, 70, 1500}} {
		rows, out, in := size[0], size[1], size[2]
		run := func(threads int) (results []*torch.Tensor) {
			c := torch.NewCtx(torch.Options{Grad: true, Threads: threads, Seed: 3})
			t.Cleanup(c.Close)
			draw := func(shape ...int64) *torch.Tensor { return c.Normal_(c.Empty(torch.Float32, shape...), 0, 1) }
			w, b, x := draw(out, in).SetRequiresGrad(true), draw(out).SetRequiresGrad(true), draw(rows, in).SetRequiresGrad(true)
			for range 2 {
				y := c.Linear(x, w, b)
				c.Backward([]*torch.Tensor{y}, []*torch.Tensor{draw(rows, out)}, false)
				results = append(results, y)
			}
			results = append(results, c.GradOf(x), c.GradOf(w))
			for _, leaf := range []*torch.Tensor{w, b, x} {
				leaf.SetGradOf(nil)
			}
			return results
		}
		ours := torch.LinearBy(int(rows), int(out), int(in)) == "Penstock"
		one := run(1)
		for _, threads := range []int{1, 2, 3} {
			first, again := run(threads), run(threads)
			for i, result := range []string{"output", "second output", "gradient of the input", "gradient of the weight"} {
				what := fmt.Sprintf("%v on %d threads, %s", size, threads, result)
				if string(torch.Bytes(again[i])) != string(torch.Bytes(first[i])) {
					t.Errorf("%s: other bits when computed again", what)
				}
				rounded(t, what, first[i], one[i])
				if ours && string(torch.Bytes(first[i])) != string(torch.Bytes(one[i])) {
					t.Errorf("%s: other bits than on one thread", what)
				}
			}
		}
	}
}

// What is no number goes where it goes in float64, and nowhere else.
func TestProductsOfFewRowsKeepNaN(t *testing.T) {
	for _, rows := range []int64{5, 32, 61} {
		const out, in = 259, 301
		c := torchtest.New(t, torch.Options{Grad: true, Threads: 1, Seed: 3})
		draw := func(shape ...int64) *torch.Tensor { return c.Normal_(c.Empty(torch.Float32, shape...), 0, 1) }
		put := func(x *torch.Tensor, i, j int64, v float64) {
			c.Fill_(c.Narrow(c.Narrow(x, 0, i, 1), 1, j, 1), v)
		}
		w, x, dy := draw(out, in), draw(rows, in), draw(rows, out)
		put(w, out-1, in-1, math.Inf(1))
		put(w, 3, 1, math.NaN())
		put(x, rows-1, 7, math.NaN())
		put(x, 2, in-1, math.Inf(-1))
		put(dy, rows-1, out-1, math.NaN())
		run := func(dtype torch.DType, linear func(x, w, b *torch.Tensor) *torch.Tensor) (results [][]float64) {
			leaf := func(x *torch.Tensor) *torch.Tensor { return c.Clone(c.Detach(c.To(x, dtype))).SetRequiresGrad(true) }
			a, b := leaf(x), leaf(w)
			y := linear(a, b, nil)
			c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.To(dy, dtype)}, false)
			results = [][]float64{numbers(y), numbers(c.GradOf(a)), numbers(c.GradOf(b))}
			a.SetGradOf(nil)
			b.SetGradOf(nil)
			return results
		}
		got, want := run(torch.Float32, c.Linear), run(torch.Float64, c.PlainLinear)
		for i := range want {
			for j, v := range want[i] {
				if g := got[i][j]; math.IsNaN(g) != math.IsNaN(v) || math.IsInf(g, 1) != math.IsInf(v, 1) || math.IsInf(g, -1) != math.IsInf(v, -1) {
					t.Fatalf("%d rows, %s: element %d is %v, want %v", rows, []string{"output", "input's gradient", "weight's gradient"}[i], j, g, v)
				}
			}
		}
	}
}
