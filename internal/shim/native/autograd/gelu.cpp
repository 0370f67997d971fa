// penstock::gelu: aten::gelu with a backward that gives libtorch plain layouts.
//
// libtorch 1.13 hands the exact GELU's backward to oneDNN. Where the gradient lies in memory in another order than the input (a transposed one, say),
// the result is written somewhere else: the gradient that comes back is what the memory held before.
#include "node.hpp"

namespace ps {
namespace {

struct Gelu final : Node {
  using Node::Node;
  std::string approximate;

  variable_list backward(variable_list&& grads) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!grads[0].defined()) return {at::Tensor()};
    return {at::gelu_backward(grads[0].contiguous(), saved(0).contiguous(), approximate)};
  }
};

at::Tensor gelu(const at::Tensor& self, c10::string_view approximate) {
  auto node = recorded<Gelu>("GeluBackward", {self});
  if (node == nullptr) return at::gelu(self, approximate);
  node->approximate = std::string(approximate);
  node->save(self);
  at::AutoDispatchBelowADInplaceOrView guard;
  return under(node, at::gelu(self, approximate));
}

}  // namespace
}  // namespace ps

TORCH_LIBRARY_FRAGMENT(penstock, m) {
  m.def("gelu(Tensor self, *, str approximate=\"none\") -> Tensor");
  m.impl("gelu", c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(ps::gelu));
}
