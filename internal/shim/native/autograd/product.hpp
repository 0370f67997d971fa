// Products of a linear layer, x [*, in], weight [out, in] and dy [rows, out], by whatever is fastest for the sizes: a library or our kernels for few rows. Which one it is depends on types and
// sizes alone, never on how a tensor lies in memory, so that a cut of the model changes no bit.
#pragma once
#include "../internal.hpp"

namespace ps {

// May the gradient of a weight be added to in place? Only that of a leaf, and where the gradient has plain memory of its own. Hooks of the leaf are not
// called: the shim gives none to leaves.
bool accumulates(const at::Tensor& weight);

// Would a product of these tensors of m x k and k x n elements be computed by something faster than the BLAS?
bool quick(const at::Tensor& a, const at::Tensor& b, int64_t m, int64_t n, int64_t k);

// The product of all sizes of t but the last.
int64_t rows_of(const at::Tensor& t);

// All dimensions of t but the last as one, by rows without gaps. libtorch multiplies what has more dimensions, or lies otherwise, in other ways: by the matrices of a batch
// or all at once, and in libtorch 2 that depends on whether a gradient of the weight is wanted. Their sums differ in the last bits, and a stage that runs a forward
// once without and once with gradients would have two results.
at::Tensor by_rows(const at::Tensor& t);

// x weight^T + bias (which may be undefined): what at::linear gives for the rows of x, but for the last bits of products that the BLAS does not compute.
at::Tensor linear_output(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

// dy weight [rows, in].
at::Tensor linear_for_input(const at::Tensor& dy, const at::Tensor& weight);

// dy^T x [out, in] of x [rows, in]: as a new tensor, or added to sum where that is defined, which is then returned. sum is contiguous and of dy's type.
at::Tensor linear_for_weight(const at::Tensor& dy, const at::Tensor& x, at::Tensor sum);

}  // namespace ps
