// What goes from one layer to the next is dense, and so are the gradients that come back: each element fills memory of its own, without gaps, in some order of dimensions.
// Dimensions along which a tensor repeats itself do not count. ATen computes what has gaps by other loops, whose last bits differ: dense everywhere, it is as a cut gives it.
#pragma once
#include "../internal.hpp"

#include <torch/csrc/autograd/function.h>

namespace ps {

// self without the dimensions in which it is expanded.
at::Tensor core(const at::Tensor& self);
// A copied core, expanded as self is. What is not expanded is no view, of which autograd would think that somebody else has its memory: it adds to a
// gradient in place only where nobody has.
at::Tensor expanded(at::Tensor copy, const at::Tensor& self);

// torch.Dense.
bool is_dense(const at::Tensor& t);

// Has the gradients that arrive at a node made dense before it runs. One of libtorch gets a hook for that, which whoever runs it calls.
void expect_dense(torch::autograd::Node& node);
bool expects_dense(const torch::autograd::Node& node);
bool has_dense_hook(const torch::autograd::Node& node);
// Gradients that are expanded stay so. before is the node that is about to run, to name it if that fails; null where it runs already.
void make_dense(torch::autograd::variable_list& grads, const torch::autograd::Node* before = nullptr);

}  // namespace ps
