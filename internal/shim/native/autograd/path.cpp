// Backward through a graph that is one path, without libtorch's engine.
//
// The engine counts how many gradients each node waits for, takes nodes from a queue in the order of their numbers, and visits leaves also where no gradient has come.
// In a path there is nothing to count or to order: each node gives a gradient to one other, and to leaves that no other node has. A network without branches
// is one, from the loss to the gate.
#include "path.hpp"
#include "node.hpp"
#include "plain.hpp"
#include "product.hpp"

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <limits>
#include <typeinfo>

namespace ps {
namespace {

using AnyNode = torch::autograd::Node;
using torch::autograd::AccumulateGrad;

bool is_leaf(const AnyNode& node) {
  return node.sequence_nr() == std::numeric_limits<uint64_t>::max() && typeid(node) == typeid(AccumulateGrad);
}

// A GPU's nodes have streams, which the engine sees to.
bool on_cpu(const AnyNode& node) {
  for (uint32_t i = 0; i < node.num_inputs(); i++)
    if (!node.input_metadata(i).device().is_cpu()) return false;
  return true;
}

// Adds a gradient to that of a leaf, which is what AccumulateGrad does.
void accumulate(AnyNode& leaf, at::Tensor grad) {
  const at::Tensor& variable = static_cast<AccumulateGrad&>(leaf).variable;
  if (accumulates(variable) && few_floats(variable.grad()) && few_floats(grad)) {
    add_to(variable.grad(), grad);
    return;
  }
  variable_list one;
  one.push_back(std::move(grad));
  leaf(std::move(one));
}

// Makes gradients what the nodes that they go to expect, as the engine does: of the shape and type that the forward's tensor had.
void fit(const torch::autograd::edge_list& edges, variable_list& grads, const AnyNode& of) {
  TORCH_CHECK(grads.size() == edges.size(), of.name(), " returned ", grads.size(), " gradients; it has ", edges.size(), " inputs");
  for (size_t i = 0; i < grads.size(); i++) {
    if (!edges[i].is_valid() || !grads[i].defined()) continue;
    const auto& expected = edges[i].function->input_metadata(edges[i].input_nr);
    if (!expected.is_same_shape(grads[i])) {
      TORCH_CHECK(expected.is_expandable_to_shape(grads[i]), of.name(), " returned an ", expected.incompatible_shape_error_message(i, grads[i]).str());
      grads[i] = expected.reduce_grad(grads[i]);
    }
    if (expected.dtype() != grads[i].dtype()) grads[i] = grads[i].to(expected.options().dtype());
  }
}

}  // namespace

bool is_path(const torch::autograd::Edge& from, const at::Tensor& grad) {
  const AnyNode* node = from.function.get();
  const auto& expected = node->input_metadata(from.input_nr);
  if (!expected.is_same_shape(grad) || expected.dtype() != grad.dtype() || expected.device() != grad.device()) return false;  // the engine says what is wrong
  std::vector<const AnyNode*> leaves;
  leaves.reserve(64);
  while (node != nullptr) {
    if (!on_cpu(*node)) return false;
    const AnyNode* next = nullptr;
    for (const auto& edge : node->next_edges()) {
      const AnyNode* to = edge.function.get();
      if (to == nullptr) continue;
      if (is_leaf(*to) && on_cpu(*to)) leaves.push_back(to);
      else if (next != nullptr) return false;
      else next = to;
    }
    node = next;
  }
  std::sort(leaves.begin(), leaves.end());
  return std::adjacent_find(leaves.begin(), leaves.end()) == leaves.end();
}

void run_path(torch::autograd::Edge to, at::Tensor grad, bool keep_graph) {
  c10::AutoGradMode off(false);
  variable_list given;
  given.push_back(std::move(grad));
  while (to.is_valid()) {
    const NodePointer<AnyNode> node = std::move(to.function);
    variable_list results;
    {
      variable_list inputs(node->num_inputs());
      inputs[to.input_nr] = std::move(given[0]);
      if (has_dense_hook(*node)) make_dense(inputs, node.get());
      if (!keep_graph) node->will_release_variables();
      results = (*node)(std::move(inputs));
      fit(node->next_edges(), results, *node);
    }
    if (!keep_graph) node->release_variables();
    to = torch::autograd::Edge();
    for (size_t i = 0; i < results.size(); i++) {
      const auto& edge = node->next_edge(i);
      if (!edge.is_valid()) continue;
      if (!is_leaf(*edge.function)) to = edge, given[0] = std::move(results[i]);
      else if (results[i].defined()) accumulate(*edge.function, std::move(results[i]));
    }
  }
}

}  // namespace ps
