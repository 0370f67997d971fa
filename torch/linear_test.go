package torch_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

// penstock::linear gives what aten::linear gives, over several micro-batches whose gradients add
// up: the first makes the gradient of the weight, later ones are added to it where it lies. The two
// sum in different orders, so results may differ by what rounding does to a sum. Outputs of small
// sizes may not differ at all, as libtorch computes them.
func TestLinearIsAtensOverMicroBatches(t *testing.T) {
	const microBatches = 5
	sizes := []struct {
		out, in int64
		rows    []int64
		same    bool
	}{
		{7, 12, []int64{9}, true},
		{7, 12, []int64{3, 5}, true},
		{96, 130, []int64{32}, false}, // oneDNN's products, where it has kernels for AVX-512
		{96, 130, []int64{5, 10}, true},
		{70, 90, []int64{4, 45}, false}, // and the BLAS's for the weight
		{70, 90, []int64{3, 50}, false},
		{70, 90, []int64{2, 3, 50}, false},
		{96, 130, []int64{2, 2, 8}, false},
		{7, 12, nil, false}, // a vector
		{7, 12, []int64{0, 3}, true},
		{7, 0, []int64{2, 3}, true},
		{0, 12, []int64{9}, true},
		{0, 12, []int64{2, 3}, true},
		{0, 12, []int64{2, 3, 5}, true},
	}
	for _, dtype := range []torch.DType{torch.Float32, torch.Float64} {
		for _, bias := range []bool{true, false} {
			for _, size := range sizes {
				out, in, rows := size.out, size.in, size.rows
				t.Run(fmt.Sprintf("%v/bias=%v/%d,%d/rows=%v", dtype, bias, out, in, rows), func(t *testing.T) {
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
						y, z := c.Linear(a, ours.weight, ours.bias), c.AtenLinear(b, theirs.weight, theirs.bias)
						if size.same && string(torch.Bytes(y)) != string(torch.Bytes(z)) {
							t.Errorf("micro-batch %d: other outputs", i)
						}
						alike(t, fmt.Sprintf("micro-batch %d, output", i), y, z)
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

// PlainLinear and Matmul give what libtorch's own operators give, with any number of dimensions, and
// as do their gradients: penstock::plain_linear and penstock::matmul multiply by rows.
func TestPlainProductsAreAtens(t *testing.T) {
	type shapes [2][]int64
	c := torchtest.New(t, torch.Options{Grad: true, Threads: 1, Seed: 3})
	draw := func(shape ...int64) *torch.Tensor { return c.Normal_(c.Empty(torch.Float32, shape...), 0, 1) }
	compare := func(of shapes, bias bool, ours, libtorchs func(a, b, bias *torch.Tensor) *torch.Tensor) {
		t.Helper()
		var results [2][]*torch.Tensor
		a, b, v := draw(of[0]...), draw(of[1]...), (*torch.Tensor)(nil)
		if bias {
			v = draw(of[1][0])
		}
		var dy *torch.Tensor
		for i, product := range []func(a, b, bias *torch.Tensor) *torch.Tensor{ours, libtorchs} {
			leaves := []*torch.Tensor{c.Detach(a).SetRequiresGrad(true), c.Detach(b).SetRequiresGrad(true)}
			var w *torch.Tensor
			if bias {
				w = c.Detach(v).SetRequiresGrad(true)
				leaves = append(leaves, w)
			}
			y := product(leaves[0], leaves[1], w)
			if dy == nil {
				dy = draw(y.Shape()...)
			}
			c.Backward([]*torch.Tensor{y}, []*torch.Tensor{dy}, false)
			results[i] = []*torch.Tensor{y}
			for _, l := range leaves {
				results[i] = append(results[i], c.GradOf(l))
				l.SetGradOf(nil)
			}
		}
		for i, got := range results[0] {
			what := fmt.Sprintf("%v, bias %v: %s", of, bias, []string{"output", "gradient of a", "gradient of b", "gradient of the bias"}[i])
			if want := results[1][i]; !slices.Equal(got.Shape(), want.Shape()) {
				t.Errorf("%s: got shape %v, want %v", what, got.Shape(), want.Shape())
				continue
			}
			alike(t, what, got, results[1][i])
		}
	}
	for _, rows := range [][]int64{{}, {9}, {2, 3}, {2, 3, 50}, {2, 40, 1, 5}, {0, 3}} {
		for _, size := range [][2]int64{{7, 12}, {96, 130}, {1, 12}, {7, 1}, {0, 12}, {7, 0}} {
			out, in := size[0], size[1]
			x := append(slices.Clip(rows), in)
			for _, bias := range []bool{false, true} {
				compare(shapes{x, {out, in}}, bias, c.PlainLinear, c.AtenLinear)
			}
			ours := func(a, b, _ *torch.Tensor) *torch.Tensor { return c.Matmul(a, b) }
			libtorchs := func(a, b, _ *torch.Tensor) *torch.Tensor { return c.AtenMatmul(a, b) }
			compare(shapes{x, {in, out}}, false, ours, libtorchs)
			compare(shapes{x, {in}}, false, ours, libtorchs)
			batch := append(slices.Clip(rows), in, out)
			compare(shapes{{5, in}, batch}, false, ours, libtorchs)
			compare(shapes{{in}, batch}, false, ours, libtorchs)
			compare(shapes{append(slices.Clip(rows), 5, in), batch}, false, ours, libtorchs)
		}
	}
}

// On a CPU the bits of a batch times a weight depend neither on how the batch and the gradient lie, which a cut of the
// model may change, nor on whether gradients are recorded: a stage that recomputes runs its forward without
// them first.
func TestProductsOfBatches(t *testing.T) {
	layouts := map[string]func(c *torch.Ctx, x *torch.Tensor, last int64) *torch.Tensor{
		"as it is": func(_ *torch.Ctx, x *torch.Tensor, _ int64) *torch.Tensor { return x },
		"transposed": func(c *torch.Ctx, x *torch.Tensor, last int64) *torch.Tensor {
			return c.Transpose(c.Contiguous(c.Transpose(x, last-1, last)), last-1, last)
		},
		"a part of wider rows": func(c *torch.Ctx, x *torch.Tensor, last int64) *torch.Tensor {
			return c.Narrow(c.Cat([]*torch.Tensor{x, x}, last), last, 0, x.Size(int(last)))
		},
		"a part of more rows": func(c *torch.Ctx, x *torch.Tensor, last int64) *torch.Tensor {
			return c.Narrow(c.Cat([]*torch.Tensor{x, x}, last-1), last-1, 0, x.Size(int(last-1)))
		},
	}
	for _, autocast := range []torch.Autocast{torch.AutocastOff, torch.AutocastBFloat16} {
		for _, shape := range [][]int64{{4, 6}, {40, 96}, {1, 2, 6, 6}, {3, 5, 6}, {2, 40, 96}, {5, 1, 96}} {
			for _, out := range []int64{1, 6, 96} {
				c := torchtest.New(t, torch.Options{Device: torch.CPU(1), Threads: 1, Seed: 3, Autocast: autocast})
				draw := func(shape ...int64) *torch.Tensor { return c.Normal_(c.Empty(torch.Float32, shape...), 0, 1) }
				last := len(shape) - 1
				x, dy := draw(shape...), draw(append(shape[:last:last], out)...)
				if autocast != torch.AutocastOff {
					dy = c.To(dy, torch.BFloat16)
				}
				w, b := draw(out, shape[last]).SetRequiresGrad(true), draw(out).SetRequiresGrad(true)
				products := map[string]func(x *torch.Tensor) *torch.Tensor{
					"linear":         func(x *torch.Tensor) *torch.Tensor { return c.Linear(x, w, b) },
					"without a bias": func(x *torch.Tensor) *torch.Tensor { return c.Linear(x, w, nil) },
					"shared weight":  func(x *torch.Tensor) *torch.Tensor { return c.PlainLinear(x, w, b) },
					"shared weight without a bias": func(x *torch.Tensor) *torch.Tensor {
						return c.PlainLinear(x, w, nil)
					},
				}
				if last > 1 {
					products["matmul"] = func(x *torch.Tensor) *torch.Tensor { return c.Matmul(x, c.Transpose(w, 0, 1)) }
				}
				for name, product := range products {
					run := func(x, dy *torch.Tensor) (results []string) {
						results = append(results, string(torch.Bytes(product(x))))
						leaf := c.Detach(x).SetRequiresGrad(true)
						c.SetGrad(true)
						y := product(leaf)
						c.SetGrad(false)
						c.Backward([]*torch.Tensor{y}, []*torch.Tensor{dy}, false)
						results = append(results, string(torch.Bytes(y)))
						for _, l := range []*torch.Tensor{leaf, w, b} {
							if l.HasGrad() {
								results = append(results, string(torch.Bytes(c.GradOf(l))))
								l.SetGradOf(nil)
							}
						}
						return results
					}
					want := run(x, dy)
					if want[0] != want[1] {
						t.Errorf("autocast %v, %s of %v to %d: other bits with gradients than without", autocast, name, shape, out)
					}
					for of, lay := range layouts {
						for dyOf, layDy := range layouts {
							got := run(lay(c, x, int64(last)), layDy(c, dy, int64(last)))
							if at := slices.Index([]bool{got[0] == want[0], got[1] == want[1], slices.Equal(got[2:], want[2:])}, false); at >= 0 {
								t.Errorf("autocast %v, %s of %v to %d, input %s, gradient %s: other %s", autocast, name, shape, out, of, dyOf,
									[]string{"outputs without gradients", "outputs", "gradients"}[at])
							}
						}
					}
				}
			}
		}
	}
}

// On a CPU the bits of a product do not depend on how its operands lie in memory, which a cut of the model
// may change.
func TestLinearsBitsDoNotDependOnLayouts(t *testing.T) {
	for _, size := range [][3]int64{{32, 96, 130}, {64, 96, 130}, {128, 96, 130}} {
		rows, out, in := size[0], size[1], size[2]
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			c := torchtest.New(t, torch.Options{Device: torch.CPU(1), Grad: true, Threads: 1, Seed: 3})
			draw := func(shape ...int64) *torch.Tensor { return c.Normal_(c.Empty(torch.Float32, shape...), 0, 1) }
			transposed := func(x *torch.Tensor) *torch.Tensor {
				return c.Transpose(c.Reshape(c.Transpose(x, 0, 1), x.Size(1), x.Size(0)), 0, 1)
			}
			w, x, dy := draw(out, in), draw(rows, in), draw(rows, out)
			wide := draw(rows, out+3)
			c.Copy_(c.Narrow(wide, 1, 2, out), dy)
			run := func(w, x, dy *torch.Tensor) (results []string) {
				weight, input := c.Detach(w).SetRequiresGrad(true), c.Detach(x).SetRequiresGrad(true)
				defer weight.SetGradOf(nil)
				defer input.SetGradOf(nil)
				for range 2 {
					y := c.Linear(input, weight, nil)
					c.Backward([]*torch.Tensor{y}, []*torch.Tensor{dy}, false)
					results = append(results, string(torch.Bytes(y)))
				}
				for _, g := range []*torch.Tensor{c.GradOf(weight), c.GradOf(input)} {
					results = append(results, string(torch.Bytes(c.Reshape(c.Clone(g), g.Size(0), g.Size(1)))))
				}
				return results
			}
			want := run(w, x, dy)
			for _, other := range []struct {
				name     string
				w, x, dy *torch.Tensor
			}{
				{"input transposed", w, transposed(x), dy},
				{"gradient transposed", w, x, transposed(dy)},
				{"gradient a part of a wider one", w, x, c.Narrow(wide, 1, 2, out)},
			} {
				if got := run(other.w, other.x, other.dy); !slices.Equal(got, want) {
					t.Errorf("%s: other bits", other.name)
				}
			}
		})
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
	alike(t, what+", gradient", c.GradOf(a), c.GradOf(b))
}

// alike compares two tensors as near does.
func alike(t *testing.T, what string, a, b *torch.Tensor) {
	t.Helper()
	ulp := math.Nextafter(1, 2) - 1
	if a.DType() == torch.Float32 {
		ulp = float64(math.Nextafter32(1, 2) - 1)
	}
	within(t, what, a, b, 8*ulp)
}

// within compares two tensors: they may differ by so much of the largest element.
func within(t *testing.T, what string, a, b *torch.Tensor, most float64) {
	t.Helper()
	got, want := numbers(a), numbers(b)
	largest := 0.0
	for _, v := range want {
		largest = max(largest, math.Abs(v))
	}
	for i := range want {
		if off := math.Abs(got[i] - want[i]); !(off <= most*largest) || len(got) != len(want) {
			t.Fatalf("%s: element %d of %d is %v, want %v of %d", what, i, len(got), got[i], want[i], len(want))
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
