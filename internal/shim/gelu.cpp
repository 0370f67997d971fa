// penstock::gelu: aten::gelu with a backward that gives libtorch plain layouts.
//
// libtorch 1.13 hands the exact GELU's backward to oneDNN. Where the gradient lies in memory in another order than the input (a transposed one, say),
// the result is written somewhere else: the gradient that comes back is what the memory held before.
#include "internal.hpp"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace ps {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Gelu : torch::autograd::Function<Gelu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& self, std::string approximate) {
    context->save_for_backward({self});
    context->saved_data["approximate"] = approximate;
    at::AutoDispatchBelowADInplaceOrView guard;
    return at::gelu(self, approximate);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const at::Tensor self = context->get_saved_variables()[0];
    return {at::gelu_backward(grads[0].contiguous(), self.contiguous(), context->saved_data["approximate"].toStringRef()), at::Tensor()};
  }
};

at::Tensor gelu(const at::Tensor& self, c10::string_view approximate) {
  if (!c10::GradMode::is_enabled() || !self.requires_grad()) return at::gelu(self, approximate);
  return Gelu::apply(self, std::string(approximate));
}

}  // namespace
}  // namespace ps

TORCH_LIBRARY_FRAGMENT(penstock, m) {
  m.def("gelu(Tensor self, *, str approximate=\"none\") -> Tensor");
  m.impl("gelu", c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(ps::gelu));
}
