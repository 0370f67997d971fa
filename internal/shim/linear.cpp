// penstock::linear: aten::linear whose backward adds the weight's gradient where it lies.
//
// Autograd would compute the product of a micro-batch's output gradient and input into new memory and then add that to the gradient: for a 1024 x 1024
// weight and 32 rows that is 16 MiB of traffic around 67 million multiply-adds. A GEMM can add to its destination (beta = 1) for the half. Micro-batches after
// the first take that way; the sums are the same on every schedule because every schedule takes it in the same order.
#include "internal.hpp"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace ps {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// May the gradient be added to in place? Only on a leaf that nobody watches, whose gradient has plain memory of its own.
bool accumulates(const at::Tensor& weight) {
  if (!weight.is_leaf() || !weight.requires_grad()) return false;
  const at::Tensor& grad = weight.grad();
  return grad.defined() && grad.is_contiguous() && !grad.requires_grad() && grad.sizes() == weight.sizes() && grad.dtype() == weight.dtype();
}

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias) {
    // As aten::linear: only what a gradient needs, so that a frozen layer keeps no activations.
    context->saved_data["input"] = input.requires_grad();
    context->saved_data["weight"] = weight.requires_grad();
    context->saved_data["sizes"] = input.sizes();
    context->save_for_backward({weight.requires_grad() ? input : at::Tensor(), input.requires_grad() || weight.requires_grad() ? weight : at::Tensor()});
    context->saved_data["bias"] = bias.has_value() && bias->requires_grad();
    at::AutoDispatchBelowADInplaceOrView guard;
    return at::linear(input, weight, bias);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1];
    const int64_t out = weight.defined() ? weight.size(0) : grads[0].size(-1);
    const at::Tensor grad = grads[0].reshape({-1, out});
    at::Tensor for_input, for_weight, for_bias;
    if (context->saved_data["input"].toBool()) for_input = grad.mm(weight).reshape(context->saved_data["sizes"].toIntVector());
    if (context->saved_data["weight"].toBool()) {
      const at::Tensor rows = input.reshape({-1, weight.size(1)});
      if (accumulates(weight)) weight.grad().addmm_(grad.t(), rows);
      else for_weight = grad.t().mm(rows);
    }
    if (context->saved_data["bias"].toBool()) for_bias = grad.sum(0);
    return {for_input, for_weight, for_bias};
  }
};

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias) {
  if (!c10::GradMode::is_enabled()) return at::linear(input, weight, bias);
  return Linear::apply(input, weight, bias);
}

}  // namespace
}  // namespace ps

TORCH_LIBRARY(penstock, m) {
  m.def("linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor");
  m.impl("linear", c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(ps::linear));
}
