#pragma once
#include "../internal.hpp"

#include <torch/csrc/autograd/function.h>

namespace ps {

// Whether the graph behind a node is one path, and the gradient what the node expects.
bool is_path(const torch::autograd::Edge& from, const at::Tensor& grad);

// The backward of such a graph, from a gradient that is defined.
void run_path(torch::autograd::Edge from, at::Tensor grad, bool keep_graph);

}  // namespace ps
