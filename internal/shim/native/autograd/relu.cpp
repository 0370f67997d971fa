// penstock::relu: aten::relu by loops of our own where the elements are few.
#include "node.hpp"
#include "plain.hpp"

namespace ps {
namespace {

struct Relu final : Node {
  using Node::Node;

  variable_list backward(variable_list&& grads) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!grads[0].defined()) return {at::Tensor()};
    return {rectified_gradient(grads[0], saved(0))};
  }
};

// The node saves the result, as autograd's does: what follows a ReLU often saves it too. It saves it without its graph, which would hold the node.
at::Tensor relu(const at::Tensor& self) {
  auto node = recorded<Relu>("ReluBackward", {self});
  if (node == nullptr) return rectified(self);
  at::AutoDispatchBelowADInplaceOrView guard;
  at::Tensor result = rectified(self);
  node->save(alias(result, false));
  return under(node, std::move(result));
}

}  // namespace
}  // namespace ps

TORCH_LIBRARY_FRAGMENT(penstock, m) {
  m.def("relu(Tensor self) -> Tensor");
  m.impl("relu", c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(ps::relu));
}
