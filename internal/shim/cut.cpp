// Where a model is cut into stages: tensors and gradients cross with the layout that they would have without the cut, because the order in which
// later operators sum, and so the bits, depends on it.
#include "internal.hpp"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace ps {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// AccumulateGrad would copy the gradient into the layout of the leaf; this leaves it in the leaf as it came.
struct Gate : torch::autograd::Function<Gate> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& leaf, const at::Tensor& value) {
    context->save_for_backward({leaf});
    return value.detach();
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::Tensor leaf = context->get_saved_variables()[0];
    leaf.mutable_grad() = grads[0];
    return {at::Tensor(), at::Tensor()};
  }
};

at::Tensor gate(const at::Tensor& leaf, const at::Tensor& value) { return Gate::apply(leaf, value); }

// A copy that is expanded where self is.
at::Tensor transfer(const at::Tensor& self, c10::Device device) {
  at::Tensor core = self;
  for (int64_t d = 0; d < self.dim(); d++)
    if (self.size(d) > 1 && self.stride(d) == 0) core = core.narrow(d, 0, 1);
  return at::_to_copy(core, at::TensorOptions().device(device)).expand(self.sizes());
}

}  // namespace
}  // namespace ps

TORCH_LIBRARY_FRAGMENT(penstock, m) {
  m.def("gate(Tensor mailbox, Tensor value) -> Tensor");
  m.impl("gate", c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(ps::gate));
  m.def("transfer(Tensor self, Device device) -> Tensor");
  m.impl("transfer", c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(ps::transfer));
}
