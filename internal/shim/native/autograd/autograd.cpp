// Gradients and backward.
#include "backward.hpp"
#include "path.hpp"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <cstring>

namespace ps {
thread_local int32_t recomputations = 0;
}

namespace {

// The node and operator that backward is running, kept by an observer so that a failure can name them. On CPU the engine runs
// on the calling thread, so thread-local is call-local here.
struct Running {
  char node[96] = "";
  const char* op = nullptr;  // operator names live as long as the operator
  uint64_t sequence = 0;
};
thread_local Running running;

}  // namespace

void ps::runs(const char* op) { running.op = op; }

namespace {

void runs_node(const char* name, uint64_t sequence) {
  strncpy(running.node, name, sizeof(running.node) - 1);
  running.op = nullptr;
  running.sequence = sequence;
}

}  // namespace

void ps::runs(const torch::autograd::Node& node) { runs_node(node.name().c_str(), node.sequence_nr()); }

namespace {

std::unique_ptr<at::ObserverContext> observe(const at::RecordFunction& fn) {
  if (fn.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    runs_node(fn.name(), static_cast<uint64_t>(fn.seqNr()));
  } else {
    running.op = fn.name();
  }
  return nullptr;
}

// Watches a backward on this thread. One that is nested in another, inside of a recomputation, is watched already; after it the outer one's node goes on.
class Observer {
 public:
  explicit Observer(bool nested) : nested_(nested), outer_(running) {
    running = Running();
    if (!nested_)
      handle_ = at::addThreadLocalCallback(
          at::RecordFunctionCallback(observe).scopes({at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::FUNCTION}));
  }
  ~Observer() {
    if (!nested_) at::removeCallback(handle_);
    else running = outer_;
  }

  void name(ps_error* e) const {
    if (running.node[0] == 0) return;
    e->node = strdup(running.node);
    if (running.op != nullptr) e->op = strdup(running.op);
    e->sequence = running.sequence;
  }

 private:
  const bool nested_;
  const Running outer_;
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
};

// A backward that fails leaves what was ready to run, with its gradients and saved tensors, in the engine's queue of this thread until the thread's next
// backward. This is one. It allocates on account 0, which has no limit.
void drain() {
  const int32_t account = ps::current_account;
  ps::current_account = 0;
  try {
    c10::AutoGradMode on(true);
    at::Tensor leaf = at::zeros({}).set_requires_grad(true);
    torch::autograd::backward({leaf}, {at::ones({})});
  } catch (...) {
  }
  ps::current_account = account;
}

}  // namespace

ps_error* ps_set_requires_grad(ps_tensor t, int32_t on) {
  return ps::guarded([&] { ps::borrow(t).set_requires_grad(on != 0); });
}

ps_tensor ps_grad(ps_tensor t) { return ps::give(ps::borrow(t).grad()); }

ps_tensor ps_take_grad(ps_tensor handle) {
  const at::Tensor t = ps::borrow(handle);
  return t.grad().defined() ? ps::give(std::move(t.mutable_grad())) : 0;
}

ps_error* ps_set_grad(ps_tensor t, ps_tensor grad) {
  return ps::guarded([&] { ps::borrow(t).mutable_grad() = ps::borrow(grad); });
}

namespace {

// Has the engine run nodes of GPUs on the calling thread, as it does those of the CPU, instead of on a thread for each GPU. A worker has one device, and
// its thread has the account, the stream and the observer.
class OneThread {
 public:
#if PS_TORCH >= 200
  OneThread() : was_(c10::AutogradState::get_tls_state().get_multithreading_enabled()) { c10::AutogradState::get_tls_state().set_multithreading_enabled(false); }
  ~OneThread() { c10::AutogradState::get_tls_state().set_multithreading_enabled(was_); }

 private:
  bool was_;
#else
  OneThread() {}
#endif
};

// Runs a backward on this thread and names what failed in it.
template <class Run>
ps_error* backward(const ps_mode* mode, Run&& run) {
  const bool nested = ps::recomputations > 0;
  Observer observer(nested);
  auto* e = ps::guarded([&] {
    ps_mode plain = *mode;
    plain.autocast = 0;
    ps::Enter enter(&plain);
    ps::prepare_products(&plain);
    OneThread here;
    run();
  });
  if (e == nullptr) return nullptr;
  observer.name(e);
  if (!nested) drain();  // a nested one shares its queue with the outer one, which fails too
  return e;
}

// Runs the graph behind a node from its gradient.
void run(torch::autograd::Edge root, at::Tensor grad, bool keep_graph) {
  if (ps::is_path(root, grad)) return ps::run_path(std::move(root), std::move(grad), keep_graph);
  torch::autograd::Engine::get_default_engine().execute({root}, {grad}, keep_graph, /*create_graph=*/false, /*accumulate_grad=*/true);
}

}  // namespace

ps_error* ps_backward(const ps_mode* mode, const ps_tensor* outputs, const ps_tensor* grads, int32_t n, int32_t keep_graph) {
  return backward(mode, [&] {
    std::vector<at::Tensor> out, grad;
    for (int32_t i = 0; i < n; i++) {
      out.push_back(ps::borrow(outputs[i]));
      grad.push_back(ps::borrow(grads[i]));
    }
    if (n == 1 && grad[0].defined() && out[0].requires_grad()) return run(torch::autograd::impl::gradient_edge(out[0]), std::move(grad[0]), keep_graph != 0);
    torch::autograd::backward(out, grad, keep_graph != 0, /*create_graph=*/false);
  });
}

ps_error* ps_backward_prepare(const ps_mode* mode, const ps_tensor* outputs, const ps_tensor* grads, int32_t n, uint64_t* prepared) {
  return ps::guarded([&] {
    ps::Enter enter(mode);  // a leaf's node, which may be made here, has the stream on which its gradients are added
    torch::autograd::edge_list next;
    torch::autograd::variable_list grad;
    for (int32_t i = 0; i < n; i++) {
      const at::Tensor t = ps::borrow(outputs[i]);
      auto edge = torch::autograd::impl::gradient_edge(t);
      TORCH_CHECK(edge.function != nullptr, "element ", i, " of tensors does not require grad and does not have a grad_fn");
      next.push_back(std::move(edge));
      grad.push_back(ps::borrow(grads[i]));
      TORCH_CHECK(grad.back().defined(), "element ", i, " has no gradient");
    }
    auto start = ps::make_node<ps::Start>(std::move(next));
    start->grads = std::move(grad);
    *prepared = ps::give(std::move(start));
  });
}

ps_error* ps_backward_run(const ps_mode* mode, uint64_t prepared) {
  torch::autograd::Edge root(std::move(ps::lent(prepared)), 0);
  ps_backward_drop(prepared);
  return backward(mode, [&] { run(std::move(root), at::empty({0}), /*keep_graph=*/false); });
}

void ps_backward_drop(uint64_t prepared) { delete &ps::lent(prepared); }

uint64_t ps_sequence(void) { return at::sequence_number::peek(); }
