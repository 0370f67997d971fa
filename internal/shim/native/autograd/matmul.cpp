// penstock::matmul and penstock::plain_linear: aten::matmul and aten::linear with gradients by autograd, which multiply batches by one matrix all at once, as
// libtorch 1.13 does. In libtorch 2 it depends on how the batch lies, and on whether a gradient of the matrix is wanted: see by_rows.
#include "node.hpp"
#include "product.hpp"

namespace ps {
namespace {

// Brings the gradient by rows too, on its way to the product.
struct Rows final : Node {
  using Node::Node;
  variable_list backward(variable_list&& grads) override { return {grads[0].defined() ? grads[0].contiguous() : grads[0]}; }
};

// The product of a batch by rows, in the shape of the batch but for the last dimension: of `columns`, or none where that is negative.
at::Tensor unfolded(const at::Tensor& product, const at::Tensor& batch, int64_t columns) {
  c10::DimVector sizes(batch.sizes());
  sizes.pop_back();
  if (columns >= 0) sizes.push_back(columns);
  const at::Tensor result = at::_unsafe_view(product, sizes);
  auto node = recorded<Rows>("RowsBackward", {result});
  return node == nullptr ? result : under(node, result.detach());
}

at::Tensor matmul(const at::Tensor& a, const at::Tensor& b) {
  const bool of_a = a.dim() > 2 && (b.dim() == 1 || b.dim() == 2), of_b = b.dim() > 2 && (a.dim() == 1 || a.dim() == 2);
  if (of_a) return unfolded(at::matmul(by_rows(a), b), a, b.dim() == 2 ? b.size(1) : -1);
  if (of_b) return a.dim() == 1 ? ps::matmul(b.mT(), a) : ps::matmul(b.mT(), a.t()).mT();
  return at::matmul(a, b);
}

at::Tensor plain_linear(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias) {
  if (input.dim() < 2 || weight.dim() != 2) return at::linear(input, weight, bias);
  return unfolded(at::linear(by_rows(input), weight, bias), input, weight.size(0));
}

}  // namespace
}  // namespace ps

TORCH_LIBRARY_FRAGMENT(penstock, m) {
  m.def("matmul(Tensor self, Tensor other) -> Tensor");
  m.impl("matmul", c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(ps::matmul));
  m.def("plain_linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor");
  m.impl("plain_linear", c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(ps::plain_linear));
}
