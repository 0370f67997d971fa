// What layers do beside products, on floats of the CPU that lie in memory by rows and are few: loops with the bits of libtorch's operators. An operator of libtorch takes
// microseconds before it begins: the dispatcher's, and those of finding out which elements of which operands belong together.
#pragma once
#include "../internal.hpp"

namespace ps {

bool floats(const at::Tensor& t);

// Floats that are contiguous and so few that libtorch would use one thread.
bool few_floats(const at::Tensor& t);

// Memory for floats of those sizes.
at::Tensor empty_floats(at::IntArrayRef sizes);

// Copies a vector, floats in any layout, to each row of contiguous floats.
void copy_to_rows(const at::Tensor& vector, const at::Tensor& rows);

// aten::sum over the first dimension of a matrix.
at::Tensor sum_of_rows(const at::Tensor& matrix);

// sum += more, both few floats, of the same sizes.
void add_to(const at::Tensor& sum, const at::Tensor& more);

// aten::relu, and its gradient by its result.
at::Tensor rectified(const at::Tensor& x);
at::Tensor rectified_gradient(const at::Tensor& grad, const at::Tensor& result);

}  // namespace ps
