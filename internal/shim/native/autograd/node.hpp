// What our own autograd functions share: a node that saves tensors, and tensors put under it. torch::autograd::Function does the same with more allocations, and
// cannot leave a gradient untouched, or save less than its arguments.
#pragma once
#include "../internal.hpp"
#include "dense.hpp"
#include "pointer.hpp"

#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

namespace ps {

using torch::autograd::variable_list;

// A node with one gradient to give for each argument it was made of. What it saves is checked as autograd's own nodes check it: a tensor
// that was changed in place since, or let go of by an earlier backward, is an error.
class Node : public torch::autograd::Node {
 public:
  // arguments are the forward's tensors, undefined where there was none; name is what autograd would call the node and lives for ever.
  Node(const char* name, const variable_list& arguments) : torch::autograd::Node(torch::autograd::collect_next_edges(arguments)), name_(name) {}

  std::string name() const override { return name_; }

  // See dense.hpp.
  void expect_dense() { dense_ = true; }
  bool expects_dense() const { return dense_; }

  variable_list apply(variable_list&& grads) final {
    if (dense_) make_dense(grads);
    return backward(std::move(grads));
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& s : saved_) s.reset_data();
  }

  void release_resources() {
    saved_.clear();
    release_edges(*this);
  }

  void save(const at::Tensor& t) { saved_.emplace_back(t, /*is_output=*/false); }

 protected:
  // The gradients of the arguments, from those of the results.
  virtual variable_list backward(variable_list&& grads) = 0;

  // What was saved i-th. The caller holds mutex_: another thread's backward through the same graph may release it.
  at::Tensor saved(size_t i) const { return saved_[i].unpack(); }
  size_t saved_count() const { return saved_.size(); }

 private:
  const char* name_;
  bool dense_ = false;
  std::vector<torch::autograd::SavedVariable> saved_;
};

// A new node N, or null where nothing is recorded.
template <class N>
NodePointer<N> recorded(const char* name, const variable_list& arguments) {
  if (!c10::GradMode::is_enabled() || !torch::autograd::any_variable_requires_grad(arguments)) return nullptr;
  return make_node<N>(name, arguments);
}

// result, which no graph has yet, as the node's next output.
inline at::Tensor under(const NodePointer<torch::autograd::Node>& node, at::Tensor result) {
  torch::autograd::create_gradient_edge(result, node);
  return result;
}

// The memory of value without its graph, as detach gives it, and as what is to be made of it: past the dispatcher, which takes longer than the rest.
inline at::Tensor alias(const at::Tensor& value, bool changing) {
  return at::Tensor(value.unsafeGetTensorImpl()->shallow_copy_and_detach(torch::autograd::impl::version_counter(value), changing));
}

}  // namespace ps
