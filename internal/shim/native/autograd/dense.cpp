#include "dense.hpp"
#include "node.hpp"

#include <torch/csrc/autograd/function_hook.h>

#include <typeinfo>

namespace ps {
namespace {

// For nodes of libtorch.
struct DenseHook final : torch::autograd::FunctionPreHook {
  variable_list operator()(const variable_list& grads) override {
    variable_list out = grads;
    make_dense(out);
    return out;
  }
};

}  // namespace

at::Tensor core(const at::Tensor& self) {
  at::Tensor core = self;
  for (int64_t d = 0; d < self.dim(); d++)
    if (self.size(d) > 1 && self.stride(d) == 0) core = core.narrow(d, 0, 1);
  return core;
}

bool is_dense(const at::Tensor& t) {
  if (t.layout() != at::kStrided || t.is_non_overlapping_and_dense() || t.numel() == 0) return true;
  return core(alias(t, false)).is_non_overlapping_and_dense();
}

bool has_dense_hook(const torch::autograd::Node& node) {
  for (const auto& hook : node.pre_hooks())
    if (typeid(*hook) == typeid(DenseHook)) return true;
  return false;
}

bool expects_dense(const torch::autograd::Node& node) {
  const auto* own = dynamic_cast<const Node*>(&node);
  return own != nullptr ? own->expects_dense() : has_dense_hook(node);
}

void expect_dense(torch::autograd::Node& node) {
  if (auto* own = dynamic_cast<Node*>(&node)) own->expect_dense();
  else if (!has_dense_hook(node)) node.add_pre_hook(std::make_unique<DenseHook>());
}

void make_dense(variable_list& grads) {
  for (at::Tensor& g : grads)
    if (g.defined() && !is_dense(g)) g = g.clone();
}

}  // namespace ps

int32_t ps_border(ps_tensor handle) {
  const at::Tensor t = ps::borrow(handle);
  if (!ps::is_dense(t)) return 0;
  try {
    if (t.requires_grad() && !t.is_leaf()) ps::expect_dense(*t.grad_fn());
  } catch (const c10::Error&) {  // a view that a change in place has made useless, which whoever uses it is told
  }
  return 1;
}
