#include "dense.hpp"
#include "backward.hpp"
#include "node.hpp"

#include <torch/csrc/autograd/function_hook.h>

#include <typeinfo>

namespace ps {
namespace {

// For nodes of libtorch. It runs before the observer of the backward hears of the node, which has it.
struct DenseHook final : torch::autograd::FunctionPreHook {
  explicit DenseHook(const torch::autograd::Node& of) : node(of) {}

  variable_list operator()(const variable_list& grads) override {
    variable_list out = grads;
    make_dense(out, &node);
    return out;
  }

  const torch::autograd::Node& node;
};

// What ps_border says of t. given: it was there before the layer that returned it.
int32_t border(const at::Tensor& t, bool given) {
  if (!is_dense(t)) return PS_GAPS;
  try {
    if (!t.requires_grad()) return PS_DENSE;
    if (const auto& node = t.grad_fn()) {
      if (given) return expects_dense(*node) ? PS_DENSE : PS_FOREIGN;
      expect_dense(*node);
    }
  } catch (const c10::Error&) {  // a view that a change in place has made useless, which whoever uses it is told
  }
  return PS_DENSE;
}

}  // namespace

at::Tensor core(const at::Tensor& self) {
  at::Tensor core = self;
  for (int64_t d = 0; d < self.dim(); d++)
    if (self.size(d) > 1 && self.stride(d) == 0) core = core.narrow(d, 0, 1);
  return core;
}

at::Tensor expanded(at::Tensor copy, const at::Tensor& self) { return copy.sizes() == self.sizes() ? std::move(copy) : copy.expand(self.sizes()); }

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
  else if (!has_dense_hook(node)) node.add_pre_hook(std::make_unique<DenseHook>(node));
}

void make_dense(variable_list& grads, const torch::autograd::Node* before) {
  for (at::Tensor& g : grads) {
    if (!g.defined() || is_dense(g)) continue;
    if (before != nullptr) runs(*before);
    g = expanded(core(alias(g, false)).clone(), g);
  }
}

}  // namespace ps

ps_error* ps_border(ps_tensor t, int32_t given, int32_t* out) {
  return ps::guarded([&] { *out = ps::border(ps::borrow(t), given != 0); });
}
