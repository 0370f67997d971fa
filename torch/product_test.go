package torch_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
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
				t.Run(fmt.Sprintf("%v/bias=%v/%d,%d/rows=%v", dtype, bias, out, in, rows),
					func(t *testing.T) {
						c := torchtest.New(t, torch.Options{Grad: true, Threads: 1, Seed: 3})
						draw := func(shape ...int64) *torch.Tensor {
							return c.Normal_(c.Empty(dtype, shape...), 0, 1)
						}
						ours := linearArguments{weight: draw(out, in)}
						if bias {
							ours.bias = draw(out)
						}
						theirs := ours.copied(c)
						ours.train()
						theirs.train()
						var where uintptr
						for i := range microBatches {
							x, g := draw(append(rows[:len(rows):len(rows)], in)...),
								draw(append(rows[:len(rows):len(rows)], out)...)
							a, b := c.Clone(x).SetRequiresGrad(true), c.Clone(x).SetRequiresGrad(true)
							y, z := c.Linear(a, ours.weight, ours.bias),
								c.AtenLinear(b, theirs.weight, theirs.bias)
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
								t.Errorf("micro-batch %d: the gradient of the weight was not added to "+
									"where it lay", i)
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
			what := fmt.Sprintf("%v, bias %v: %s", of, bias, []string{"output", "gradient of a",
				"gradient of b", "gradient of the bias"}[i])
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

// On a CPU the bits of a batch times a weight depend neither on how the batch and the gradient lie,
// which a cut of the
// model may change, nor on whether gradients are recorded: a stage that recomputes runs its forward without
// them first.
func TestProductsOfBatches(t *testing.T) {
	layouts := map[string]func(c *torch.Ctx, x *torch.Tensor, last int64) *torch.Tensor{
		"as it is": func(_ *torch.Ctx, x *torch.Tensor, _ int64) *torch.Tensor { return x },
		"transposed": func(c *torch.Ctx, x *torch.Tensor, last int64) *torch.Tensor {
			return c.Transpose(c.Op("aten::contiguous", c.Transpose(x, last-1, last)), last-1, last)
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
				c := torchtest.New(t, torch.Options{Device: torch.CPU(1), Threads: 1, Seed: 3,
					Autocast: autocast})
				draw := func(shape ...int64) *torch.Tensor {
					return c.Normal_(c.Empty(torch.Float32, shape...), 0, 1)
				}
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
					products["matmul"] = func(x *torch.Tensor) *torch.Tensor {
						return c.Matmul(x, c.Transpose(w, 0, 1))
					}
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
						t.Errorf("autocast %v, %s of %v to %d: other bits with gradients than without",
							autocast, name, shape, out)
					}
					for of, lay := range layouts {
						for dyOf, layDy := range layouts {
							got := run(lay(c, x, int64(last)), layDy(c, dy, int64(last)))
							if at := slices.Index([]bool{got[0] == want[0], got[1] == want[1],
								slices.Equal(got[2:], want[2:])}, false); at >= 0 {
								t.Errorf("autocast %v, %s of %v to %d, input %s, gradient %s: other %s",
									autocast, name, shape, out, of, dyOf,
									[]string{"outputs without gradients", "outputs", "gradients"}[at])
							}
						}
					}
				}
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
			t.Fatalf("%s: element %d of %d is %v, want %v of %d", what, i, len(got), got[i], want[i],
				len(want))
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

// Products are cut into parts for several threads. Together they are all of the product, whatever its
// sizes, and
// however its operands lie: sums of whole numbers have no rounding.
func TestProductsInParts(t *testing.T) {
	for _, dtype := range []torch.DType{torch.Float32, torch.Float64} {
		for _, size := range [][3]int64{{1, 1, 1}, {100, 130, 90}, {257, 300, 129}, {2000, 3, 400}, {3,
			2000, 400}, {17, 65, 5000}, {640, 640, 32}, {512, 16, 1024}} {
			m, n, k := size[0], size[1], size[2]
			var want, added []byte
			for _, threads := range []int{1, 2, 5} {
				c := torchtest.New(t, torch.Options{Grad: true, Threads: threads, Seed: 3})
				random := rand.New(rand.NewPCG(1, 2))
				whole := func(rows, columns int64) *torch.Tensor {
					values := make([]float32, rows*columns)
					for i := range values {
						values[i] = float32(random.IntN(9) - 4)
					}
					return c.To(torch.From(c, values, rows, columns), dtype)
				}
				a, b, sum := whole(m, k), whole(k, n), whole(m, n)
				for _, x := range []*torch.Tensor{a, transposed(c, a)} {
					for _, w := range []*torch.Tensor{b, transposed(c, b)} {
						y := torch.Bytes(c.Op("aten::mm", x, w))
						if want == nil {
							want = y
						}
						if string(y) != string(want) {
							t.Errorf("%v, %v with %d threads: another product", dtype, size, threads)
						}
					}
				}
				// the products of a linear layer, whose gradient is added to what is there
				weight := c.Clone(c.Transpose(b, 0, 1)).SetRequiresGrad(true)
				x := c.Clone(a).SetRequiresGrad(true)
				for range 2 {
					y := c.Linear(x, weight, nil)
					if string(torch.Bytes(y)) != string(want) {
						t.Errorf("%v, %v with %d threads: another output", dtype, size, threads)
					}
					c.Backward([]*torch.Tensor{y}, []*torch.Tensor{sum}, false)
				}
				grads := append(torch.Bytes(c.GradOf(weight)), torch.Bytes(c.GradOf(x))...)
				if added == nil {
					added = grads
				}
				if string(grads) != string(added) {
					t.Errorf("%v, %v with %d threads: other gradients", dtype, size, threads)
				}
				weight.SetGradOf(nil)
				x.SetGradOf(nil)
				c.Close()
			}
		}
	}
}

// transposed is a matrix that lies by columns.
func transposed(c *torch.Ctx, a *torch.Tensor) *torch.Tensor {
	return c.Transpose(c.Clone(c.Transpose(a, 0, 1)), 0, 1)
}

// Products of few rows and a weight are computed by kernels of our own where the core has AVX-512.
// Here they leave remainders of rows, of columns and of terms. They and the gradient of the weight are
// compared with float64, over two micro-batches.
func TestProductsOfFewRows(t *testing.T) {
	const least = 1 << 18 // multiply-adds, below which the BLAS computes
	sizes := [][3]int64{{128, 40, 70}, {129, 40, 70}, {90, 33, 1100}, {100, 17, 200}, {8, 64, 2100}, {33,
		1100, 20}, {64, 7, 4099}, {2, 4099, 50}, {128, 3, 1030}}
	for rows := int64(1); rows <= 70; rows++ {
		in := []int64{1030, 517, 131, 67, 48, 144}[rows%6]
		sizes = append(sizes, [3]int64{rows, least/(rows*in) + 1, in})
	}
	for i, size := range sizes {
		rows, out, in := size[0], size[1], size[2]
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			c := torchtest.New(t, torch.Options{Grad: true, Threads: 1, Seed: uint64(i)})
			draw := func(shape ...int64) *torch.Tensor {
				return c.Normal_(c.Empty(torch.Float32, shape...), 0, 1)
			}
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

// What is no number goes where it goes in float64, and nowhere else.
func TestProductsOfFewRowsKeepNaN(t *testing.T) {
	for _, rows := range []int64{5, 32, 61} {
		const out, in = 259, 301
		c := torchtest.New(t, torch.Options{Grad: true, Threads: 1, Seed: 3})
		draw := func(shape ...int64) *torch.Tensor {
			return c.Normal_(c.Empty(torch.Float32, shape...), 0, 1)
		}
		put := func(x *torch.Tensor, i, j int64, v float64) {
			c.Fill_(c.Narrow(c.Narrow(x, 0, i, 1), 1, j, 1), v)
		}
		w, x, dy := draw(out, in), draw(rows, in), draw(rows, out)
		put(w, out-1, in-1, math.Inf(1))
		put(w, 3, 1, math.NaN())
		put(x, rows-1, 7, math.NaN())
		put(x, 2, in-1, math.Inf(-1))
		put(dy, rows-1, out-1, math.NaN())
		run := func(dtype torch.DType, linear func(x, w,
			b *torch.Tensor) *torch.Tensor) (results [][]float64) {
			leaf := func(x *torch.Tensor) *torch.Tensor {
				return c.Clone(c.Detach(c.To(x, dtype))).SetRequiresGrad(true)
			}
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
				if g := got[i][j]; math.IsNaN(g) != math.IsNaN(v) || math.IsInf(g, 1) != math.IsInf(v,
					1) || math.IsInf(g, -1) != math.IsInf(v, -1) {
					t.Fatalf("%d rows, %s: element %d is %v, want %v", rows, []string{"output",
						"input's gradient", "weight's gradient"}[i], j, g, v)
				}
			}
		}
	}
}

// A convolution of few positions is a product of matrices with a backward of its own: it must give
// what aten::conv2d gives, also where a second backward adds to the gradients, and only the gradients
// that are wanted.
func TestConvolutionOfFewPositions(t *testing.T) {
	for _, row := range []struct {
		name                                     string
		images, in, out, height, width           int64
		kernel, stride, padding, dilation, group int64
	}{
		{"one position of one image", 1, 256, 1024, 1, 1, 1, 1, 0, 1, 1},
		{"1x1", 2, 256, 160, 4, 4, 1, 1, 0, 1, 1},
		{"1x1 of stride 2", 2, 256, 160, 7, 8, 1, 2, 0, 1, 1},
		{"3x3", 2, 64, 96, 4, 4, 3, 1, 1, 1, 1},
		{"3x3 of stride 2", 3, 64, 96, 5, 6, 3, 2, 1, 1, 1},
		{"3x3 dilated", 2, 64, 96, 5, 5, 3, 1, 1, 2, 1},
		{"3x3 of tensors that lie otherwise", 2, 64, 96, 4, 4, 3, 1, 1, 1, 1},
		{"too many positions", 2, 64, 96, 8, 8, 3, 1, 1, 1, 1},
		{"groups", 2, 64, 96, 4, 4, 3, 1, 1, 1, 2},
	} {
		t.Run(row.name, func(t *testing.T) {
			torchtest.Check(t)
			c := torchtest.New(t, torch.Options{Seed: 3, Threads: 1})
			x, w, b := c.Randn(row.images, row.in, row.height, row.width), c.Randn(row.out,
				row.in/row.group, row.kernel, row.kernel), c.Randn(row.out)
			if strings.Contains(row.name, "lie otherwise") {
				x, w = c.Transpose(x, 2, 3), c.Transpose(w, 2, 3)
			}
			square := func(n int64) []int64 { return []int64{n, n} }
			for wanted := range 8 {
				ours := func(x, w, b *torch.Tensor) *torch.Tensor {
					return c.Op("penstock::conv2d", x, w, b, square(row.stride), square(row.padding),
						square(row.dilation), row.group)
				}
				aten := func(x, w, b *torch.Tensor) *torch.Tensor {
					return c.Op("aten::conv2d", x, w, b, square(row.stride), square(row.padding),
						square(row.dilation), row.group)
				}
				var results [][][]float32
				for _, conv := range []func(x, w, b *torch.Tensor) *torch.Tensor{ours, aten} {
					var leaves []*torch.Tensor
					c.SetGrad(false)
					for i, v := range []*torch.Tensor{x, w, b} {
						leaves = append(leaves, c.Clone(v).SetRequiresGrad(wanted>>i&1 == 1))
					}
					var list [][]float32
					for range 2 {
						c.SetGrad(true)
						y := conv(leaves[0], leaves[1], leaves[2])
						c.SetGrad(false)
						list = append(list, torch.Values[float32](y))
						if wanted > 0 {
							c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.Op("aten::tanh", y)}, false)
						}
					}
					for i, v := range leaves {
						if g := c.GradOf(v); (g != nil) != (wanted>>i&1 == 1) {
							t.Fatalf("gradient %d is %v; want one: %v", i, g, wanted>>i&1 == 1)
						} else if g != nil {
							list = append(list, torch.Values[float32](g))
						}
						v.SetGradOf(nil)
					}
					results = append(results, list)
				}
				for i := range results[0] {
					if err := sameSums(results[0][i], results[1][i]); err != nil {
						t.Errorf("gradients wanted %03b, result %d: %v", wanted, i, err)
					}
				}
			}
		})
	}
}

// sameSums says where two results differ by more than sums in another order do.
func sameSums(got, want []float32) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d numbers; want %d", len(got), len(want))
	}
	most := 0.0
	for _, v := range want {
		most = max(most, math.Abs(float64(v)))
	}
	for i := range got {
		if d := math.Abs(float64(got[i] - want[i])); !(d <= 2e-5*most) {
			return fmt.Errorf("number %d is %v; want %v", i, got[i], want[i])
		}
	}
	return nil
}
