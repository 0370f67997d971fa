package nn

import (
	"slices"

	"penstock.example/torch"
)

// On CUDA some kernels of libtorch add in an order that changes from run to run: losses of classes
// [N, C, ...], and the backwards of adaptive pools and of bilinear interpolation. This file has
// replacements that give the same bits each time.

// needsOrder reports whether the context's device needs the replacements. Tests replace it.
var needsOrder = func(c *Ctx) bool { return c.Device().Kind == torch.KindCUDA }

// classRows returns output and target for a loss of classes. On CUDA an output [N, C, ...] becomes
// rows [M, C], and its target [M].
func classRows(c *Ctx, output, target *torch.Tensor) (rows, classes *torch.Tensor) {
	shape := output.Shape()
	if !needsOrder(c) || len(shape) < 3 ||
		!slices.Equal(target.Shape(), slices.Concat(shape[:1], shape[2:])) {
		return output, target
	}
	flatten := func(t *torch.Tensor, start, end int) *torch.Tensor {
		return c.Op("aten::flatten.using_ints", t, start, end)
	}
	return flatten(c.Transpose(flatten(output, 2, -1), 1, 2), 0, 1), flatten(target, 0, -1)
}

// resize resizes images [N, C, H, W] by two products: a matrix times each image times a matrix.
// resizeDim resizes an image's height (dim 0) or width (dim 1). From the identity it makes the
// matrix.
func resize(c *Ctx, x *torch.Tensor,
	resizeDim func(image *torch.Tensor, dim int) *torch.Tensor) *torch.Tensor {
	defer c.SetAutocast(c.SetAutocast(torch.AutocastOff))
	mark, dtype := c.Mark(), x.DType()
	if dtype.Size() == 2 { // too few digits for the matrices
		x = c.To(x, torch.Float32)
	}
	matrix := func(dim int) *torch.Tensor {
		n := x.Size(2 + dim)
		return resizeDim(c.Reshape(c.Op("aten::eye", n, x.DType(), nil, c.Device()), 1, 1, n, n), dim)
	}
	y := c.Matmul(c.Matmul(matrix(0), x), matrix(1))
	if y.DType() != dtype {
		y = c.To(y, dtype)
	}
	c.Release(mark, y)
	return y
}
