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
			x, w, b := c.Randn(row.images, row.in, row.height, row.width), c.Randn(row.out, row.in/row.group, row.kernel, row.kernel), c.Randn(row.out)
			if strings.Contains(row.name, "lie otherwise") {
				x, w = c.Transpose(x, 2, 3), c.Transpose(w, 2, 3)
			}
			square := func(n int64) []int64 { return []int64{n, n} }
			for wanted := range 8 {
				ours := func(x, w, b *torch.Tensor) *torch.Tensor {
					return c.Conv2d(x, w, b, square(row.stride), square(row.padding), square(row.dilation), row.group)
				}
				aten := func(x, w, b *torch.Tensor) *torch.Tensor {
					return c.PlainConv2d(x, w, b, square(row.stride), square(row.padding), square(row.dilation), row.group)
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
							c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.Tanh(y)}, false)
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

// nodeOf is the name of the node that made y, which is y's in the error of a backward that gets no memory.
func nodeOf(t *testing.T, c *torch.Ctx, y *torch.Tensor) string {
	t.Helper()
	ones := c.OnesLike(y)
	c.Device().SetLimit(c.Device().Memory().Live + 16)
	err := torch.Try(func() { c.Backward([]*torch.Tensor{y}, []*torch.Tensor{ones}, false) })
	c.Device().SetLimit(0)
	var e *torch.Error
	if !errors.As(err, &e) || !errors.Is(err, torch.ErrOutOfMemory) {
		t.Fatalf("backward without memory: %v", err)
	}
	return e.Op
}

// The products are what computes a convolution of few positions where Penstock or oneDNN has kernels for them, whatever
// the number of threads and however tensors lie, but not under autocast.
func TestConvolutionOfFewPositionsIsAProduct(t *testing.T) {
	if by := torch.LinearBy(2*4*4, 96, 64*3*3); by == "BLAS" {
		t.Skip("products are the BLAS's here")
	}
	for _, row := range []struct {
		name                string
		threads             int
		size                int64
		transposed, lowered bool
		ours                bool
	}{
		{"few positions", 1, 4, false, false, true},
		{"two threads", 2, 4, false, false, true},
		{"tensors that lie otherwise", 1, 4, true, false, true},
		{"many positions", 1, 8, false, false, false},
		{"autocast", 1, 4, false, true, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			options := torch.Options{Device: torch.CPU(1), Seed: 3, Threads: row.threads}
			if row.lowered {
				options.Autocast = torch.AutocastBFloat16
			}
			torchtest.Check(t)
			c := torch.NewCtx(options)
			defer c.Close()
			x, w := c.Randn(2, 64, row.size, row.size), c.Randn(96, 64, 3, 3)
			if row.transposed {
				x, w = c.Transpose(x, 2, 3), c.Transpose(w, 2, 3)
			}
			one := []int64{1, 1}
			plain := c.PlainConv2d(x, w, nil, one, one, one, 1)
			w.SetRequiresGrad(true)
			c.SetGrad(true)
			y := c.Conv2d(x, w, nil, one, one, one, 1)
			c.SetGrad(false)
			if y.DType() != plain.DType() {
				t.Errorf("it is of %v; want %v", y.DType(), plain.DType())
			}
			if err := sameSums(torch.Values[float32](c.To(y, torch.Float32)), torch.Values[float32](c.To(plain, torch.Float32))); err != nil {
				t.Error(err)
			}
			if node := nodeOf(t, c, y); strings.Contains(node, "Conv2dBackward") != row.ours {
				t.Errorf("its node is %q; want that of products: %v", node, row.ours)
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
