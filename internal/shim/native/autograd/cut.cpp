// Where a model is cut, into stages or at a checkpoint: tensors and gradients cross with the layout that they would have without the cut, because the
// order in which later operators sum, and so the bits, depends on it.
#include "node.hpp"

namespace ps {
namespace {

// AccumulateGrad would copy the gradient into the layout of the leaf; this leaves it in the mailbox with the layout that it has. There is no edge on which it would go on.
struct Gate final : Node {
  explicit Gate(const char* name, const variable_list&) : Node(name, {}) {}

  variable_list backward(variable_list&& grads) override {
    std::lock_guard<std::mutex> lock(mutex_);
    saved(0).mutable_grad() = grads[0];
    return {};
  }
};

at::Tensor gate(const at::Tensor& mailbox, const at::Tensor& value) {
  auto node = recorded<Gate>("GateBackward", {mailbox});
  if (node == nullptr) return value.detach();
  node->save(mailbox);
  return under(node, alias(value, false));
}

// aten::narrow. A part of a batch, which has no graph, is made for each micro-batch and stage.
at::Tensor narrow(const at::Tensor& self, int64_t dim, int64_t start, int64_t length) {
  if (c10::GradMode::is_enabled() || !self.has_storage() || dim < 0 || dim >= self.dim() || start < 0 || length < 0 || length > self.size(dim) ||
      start > self.size(dim) - length)
    return self.narrow(dim, start, length);
  at::Tensor part = alias(self, true);
  c10::DimVector sizes(self.sizes());
  sizes[dim] = length;
  part.unsafeGetTensorImpl()->set_storage_offset(self.storage_offset() + start * self.stride(dim));
  part.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, self.strides());
  return part;
}

// A gate with a mailbox of its own, which gets dense gradients.
std::tuple<at::Tensor, at::Tensor> mailed(const at::Tensor& value) {
  at::Tensor mailbox = at::empty({0}, value.options().dtype(at::kFloat)).set_requires_grad(true);
  at::Tensor behind = gate(mailbox, value);
  if (behind.requires_grad()) expect_dense(*behind.grad_fn());
  return {std::move(mailbox), std::move(behind)};
}

at::Tensor transfer(const at::Tensor& self, c10::Device device) {
  return expanded(at::_to_copy(core(self), at::TensorOptions().device(device)), self);
}

// The memory of such a copy, and the copy into it: where the memory belongs to one stream and another one copies, they are two calls.
at::Tensor transfer_memory(const at::Tensor& self, c10::Device device) {
  const at::Tensor from = core(self);
  return expanded(at::empty_like(from, from.options().device(device), at::MemoryFormat::Preserve), self);
}
void transfer_into(at::Tensor into, const at::Tensor& self) { core(into).copy_(core(self)); }

}  // namespace
}  // namespace ps

TORCH_LIBRARY_FRAGMENT(penstock, m) {
  m.def("gate(Tensor mailbox, Tensor value) -> Tensor");
  m.impl("gate", c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(ps::gate));
  m.def("mailed(Tensor value) -> (Tensor mailbox, Tensor behind)");
  m.impl("mailed", c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(ps::mailed));
  m.def("narrow(Tensor(a) self, int dim, int start, int length) -> Tensor(a)");
  m.impl("narrow", c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(ps::narrow));
  m.def("transfer(Tensor self, Device device) -> Tensor");
  m.impl("transfer", c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(ps::transfer));
  m.def("transfer_memory(Tensor self, Device device) -> Tensor");
  m.impl("transfer_memory", c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(ps::transfer_memory));
  m.def("transfer_into(Tensor(a!) into, Tensor self) -> ()");
  m.impl("transfer_into", c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(ps::transfer_into));
}
