// penstock::branch: a tensor under a node of its own, where the gradients of what uses it are summed before they join the rest.
//
// Autograd sums the gradients of a tensor's uses in the order in which they arrive, and (a + b) + c has other bits than a + (b + c). Where one part of
// a network may be cut off from the others, a branch fixes which uses are summed first. What it hands on is dense, as what a cut hands on.
#include "node.hpp"

namespace ps {
namespace {

struct Branch final : Node {
  using Node::Node;
  variable_list backward(variable_list&& grads) override { return std::move(grads); }
};

// detach gives the same memory and the same version counter, so that a change in place of one is noticed by what saved the other.
at::Tensor branch(const at::Tensor& self) {
  auto node = recorded<Branch>("BranchBackward", {self});
  if (node == nullptr) return self;
  node->expect_dense();
  return under(node, self.detach());
}

}  // namespace
}  // namespace ps

TORCH_LIBRARY_FRAGMENT(penstock, m) {
  m.def("branch(Tensor self) -> Tensor");
  m.impl("branch", c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(ps::branch));
}
