// Nodes whose backward is Go's: one node in place of a graph that Go makes again, or has kept in parts. A checkpoint (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016) holds the
// inputs of a function; its backward has Go run the function again, and the backward of that, on the thread and inside of the call that runs the node. Others hold nothing here.
//
// That inner backward is reentrant: libtorch's engine works through it on the same thread, and takes another thread of its own where a GPU's thread is 60 deep.
#include "node.hpp"

namespace ps {
namespace {

ps_recompute recompute = nullptr;
ps_forget forget = nullptr;

// The thread is inside of a recomputation, which leaves the thread as it was.
class Inside {
 public:
  Inside() : threads_(applied_threads()) { recomputations++; }
  ~Inside() {
    recomputations--;
    if (threads_ > 0) apply_threads(threads_);
  }

 private:
  const int32_t threads_;
};

std::vector<ps_tensor> lent(const variable_list& tensors) {
  std::vector<ps_tensor> out;
  for (const auto& t : tensors) out.push_back(t.defined() ? reinterpret_cast<ps_tensor>(t.unsafeGetTensorImpl()) : 0);
  return out;
}

class Checkpoint final : public Node {
 public:
  Checkpoint(int64_t id, const variable_list& inputs, bool hold) : Node("CheckpointBackward", inputs), id_(id), inputs_(inputs.size()) {
    if (!hold) return;
    for (const auto& t : inputs) save(t);
  }
  ~Checkpoint() override {
    if (!released_) forget(id_);
  }

  // The engine says so before the backward that it will not run again.
  void will_release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    last_ = true;
  }

  void release_variables() override {
    Node::release_variables();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (released_) return;
      released_ = true;
    }
    forget(id_);
  }

  variable_list backward(variable_list&& grads) override {
    const std::vector<int32_t> wanted = wants();
    variable_list inputs = leaves(wanted);
    auto input = lent(inputs);
    std::vector<ps_tensor> grad, input_grad(inputs_, 0);
    for (auto& g : grads) grad.push_back(give(std::move(g)));  // nobody but Go has them now, and they go when Go is done with them
    ps_recomputation r = {sequence_nr(), static_cast<int32_t>(inputs_), static_cast<int32_t>(grad.size()), recomputations, last_ ? 1 : 0,
                          wanted.data(), input.data(), grad.data(), input_grad.data()};
    {
      Inside inside;
      if (recompute(id_, &r) != 0) throw RecomputationFailed(id_);
    }
    variable_list out;
    for (ps_tensor t : input_grad) {
      out.push_back(borrow(t));
      ps_release(t);
    }
    return out;
  }

 private:
  // By input: whether its gradient goes on.
  std::vector<int32_t> wants() const {
    std::vector<int32_t> out;
    for (size_t i = 0; i < inputs_; i++) out.push_back(task_should_compute_output(i) ? 1 : 0);
    return out;
  }

  // The inputs outside of the graph, requiring a gradient where it goes on; undefined where they are not held.
  variable_list leaves(const std::vector<int32_t>& wanted) {
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(!released_, torch::autograd::ERR_BACKWARD_TWICE);
    variable_list out(inputs_);
    for (size_t i = 0; i < saved_count(); i++) {
      at::Tensor t = saved(i);
      if (!t.defined()) continue;
      out[i] = t.detach();
      if (wanted[i]) out[i].set_requires_grad(true);
    }
    return out;
  }

  const int64_t id_;
  const size_t inputs_;
  bool last_ = false, released_ = false;
};

}  // namespace
}  // namespace ps

void ps_checkpoint_register(ps_recompute recompute, ps_forget forget) {
  ps::recompute = recompute;
  ps::forget = forget;
}

ps_error* ps_checkpoint(int64_t id, int32_t hold, const ps_tensor* inputs, int32_t n, const ps_tensor* outputs, int32_t m, ps_tensor* attached) {
  return ps::guarded([&] {
    ps::variable_list in, out;
    for (int32_t i = 0; i < n; i++) in.push_back(ps::borrow(inputs[i]));
    const auto node = ps::make_node<ps::Checkpoint>(id, in, hold != 0);
    for (int32_t i = 0; i < m; i++) {
      at::Tensor t = ps::borrow(outputs[i]);
      if (t.defined() && (t.is_floating_point() || t.is_complex())) {
        t = ps::under(node, t.detach());
      } else {
        node->add_input_metadata(torch::autograd::Node::undefined_input());  // the node counts outputs as Go does
      }
      out.push_back(std::move(t));
    }
    for (int32_t i = 0; i < m; i++) attached[i] = ps::give(std::move(out[i]));
  });
}
