// penstock::linear: aten::linear whose backward adds the weight's gradient where it lies.
//
// Autograd would compute the product of a micro-batch's output gradient and input into new memory and then add that to the gradient: for a 1024 x 1024
// weight and 32 rows that is 16 MiB of traffic around 67 million multiply-adds. A GEMM can add to its destination (beta = 1) for the half. Micro-batches after
// the first take that way; the sums are the same on every schedule because every schedule takes it in the same order.
//
// Under autocast it gives what aten::linear gives: products of bfloat16, in backward too. aten::linear keeps the casted weight until backward; here it is casted
// again, so that the micro-batches in flight do not hold a copy of the weights each.
#include "node.hpp"
#include "plain.hpp"
#include "product.hpp"

namespace ps {
namespace {

struct Linear final : Node {
  using Node::Node;
  std::vector<int64_t> sizes;  // of the input

  // Gradients in bfloat16 become the arguments' type on their way: autograd casts them to what the arguments were.
  variable_list backward(variable_list&& grads) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!grads[0].defined()) return variable_list(3);
    const at::Tensor input = saved(0), weight = saved(1);
    const at::Tensor grad = by_rows(grads[0]);
    at::Tensor for_input, for_weight, for_bias;
    if (task_should_compute_output(0)) {
      for_input = linear_for_input(grad, weight.scalar_type() == grad.scalar_type() ? weight : weight.to(grad.scalar_type()));
      if (sizes.size() != 2) for_input = for_input.reshape(sizes);
    }
    if (task_should_compute_output(1)) {
      const at::Tensor rows = by_rows(input);
      if (!accumulates(weight)) for_weight = linear_for_weight(grad, rows, at::Tensor());
      else if (grad.scalar_type() == weight.scalar_type()) linear_for_weight(grad, rows, weight.grad());
      else weight.grad().add_(grad.t().mm(rows));
    }
    if (task_should_compute_output(2)) for_bias = sum_of_rows(grad);
    return {for_input, for_weight, for_bias};
  }
};

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias) {
  const at::Tensor b = bias.has_value() ? *bias : at::Tensor();
  auto node = recorded<Linear>("LinearBackward", {input, weight, b});
  const at::Tensor x = lowered(input), w = lowered(weight);
  if (node == nullptr) return linear_output(x, w, b);
  at::AutoDispatchBelowADInplaceOrView guard;
  // As aten::linear: only what a gradient needs, so that a frozen layer keeps no activations.
  node->sizes = input.sizes().vec();
  node->save(weight.requires_grad() ? x : at::Tensor());
  node->save(input.requires_grad() || weight.requires_grad() ? weight : at::Tensor());
  return under(node, linear_output(x, w, b));
}

}  // namespace
}  // namespace ps

TORCH_LIBRARY(penstock, m) {
  m.def("linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor");
  m.impl("linear", c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(ps::linear));
}
