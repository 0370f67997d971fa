// What the shim's files share. Nothing here is seen from Go.
#pragma once
#include "shim.h"
#include "version.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>

#include <stdexcept>
#include <string>

namespace ps {

#if PS_TORCH >= 205
using OptionalTensor = std::optional<at::Tensor>;
#else
using OptionalTensor = c10::optional<at::Tensor>;
#endif

// Facts about an allocation that was refused, left for the catch block of the same call. It is what failed the call if the message of the error has this one: libtorch may have caught it itself,
// and thrown another one later.
struct Failure {
  std::string message;  // "" is none
  int32_t account = 0;
  int64_t limit = 0, live = 0, requested = 0;
};
extern thread_local Failure failure;

// The accounts that allocations of this thread are charged to, on the CPU and on GPUs. Account 0 has no limit.
extern thread_local int32_t current_account, current_gpu_account;

// How many recomputations (checkpoint.cpp) this thread is inside of: what runs then is nested in a backward.
extern thread_local int32_t recomputations;

// The recomputation of a checkpoint ended in Go with something that is not ours to read: only the way out is.
struct RecomputationFailed : std::runtime_error {
  explicit RecomputationFailed(int64_t id) : std::runtime_error("a recomputation failed"), checkpoint(id) {}
  int64_t checkpoint;
};

void apply_threads(int32_t n);
int32_t applied_threads();  // what apply_threads was last given on this thread; 0 = never
ps_error* make_error(int32_t kind, const char* message);
ps_error* caught(const char* message);
ps_error* caught(const RecomputationFailed& e);

// Autocast to a type of numbers on a type of device, from begin to the end of the scope (autocast.cpp). The cache of casted weights is off: it is
// the thread's, outlives the call, and would hold memory that no graph needs.
class Autocast {
 public:
  ~Autocast() {
    if (on_) end();
  }
  void begin(c10::DeviceType type, at::ScalarType to);

 private:
  void end();

  bool on_ = false, was_enabled_ = false, was_cached_ = false;
  c10::DeviceType type_ = c10::DeviceType::CPU;
  at::ScalarType was_dtype_ = at::kBFloat16;
};

// t as an operator that autocast lowers takes it: t itself without autocast.
at::Tensor lowered(const at::Tensor& t);
// Whether autocast is on for t's device.
bool lowers(const at::Tensor& t);

// A stream of an accelerator by its number.
inline c10::Stream stream(int32_t device_type, int32_t device_index, int64_t id) {
  const c10::Device device(static_cast<c10::DeviceType>(device_type), static_cast<c10::DeviceIndex>(device_index));
  return c10::Stream(c10::Stream::UNSAFE, device, id);
}

// Applies a mode for the length of a call.
class Enter {
 public:
  explicit Enter(const ps_mode* m) : grad_(m->grad != 0), account_(current_account), gpu_account_(current_gpu_account) {
    const bool gpu = m->account >= PS_GPU_ACCOUNT; // what it makes on the CPU is charged to none
    current_account = gpu ? 0 : m->account;
    current_gpu_account = gpu ? m->account : 0;
    failure.message.clear();
    if (m->threads > 0) apply_threads(m->threads);
    if (m->peer_index >= 0) peer_.reset_stream(stream(m->device_type, m->peer_index, m->peer_stream));
    if (m->device_index >= 0) stream_.reset_stream(stream(m->device_type, m->device_index, m->stream));
    if (m->autocast != 0) autocast_.begin(static_cast<c10::DeviceType>(m->device_type), m->autocast == 2 ? at::kHalf : at::kBFloat16);
  }
  ~Enter() { current_account = account_, current_gpu_account = gpu_account_; }

 private:
  c10::AutoGradMode grad_;
  c10::OptionalStreamGuard peer_, stream_;  // the second one also chooses the device
  Autocast autocast_;
  int32_t account_, gpu_account_;
};

// Has libtorch take the workspaces that it keeps for products of the calling thread on the mode's stream, if that is a GPU's: see gpu.cpp. It comes before what multiplies.
#ifdef PENSTOCK_CUDA
void prepare_products(const ps_mode* m);
#else
inline void prepare_products(const ps_mode*) {}
#endif

// A borrowed handle as a tensor with a reference of its own.
inline at::Tensor borrow(ps_tensor t) {
  if (t == 0) return at::Tensor();
  return at::Tensor(c10::intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>::reclaim_copy(reinterpret_cast<at::TensorImpl*>(t)));
}

// Gives a tensor's reference away as a handle; 0 for an undefined tensor.
inline ps_tensor give(at::Tensor t) { return t.defined() ? reinterpret_cast<ps_tensor>(t.unsafeReleaseTensorImpl()) : 0; }

// Runs f and turns whatever it throws into an error. what_without_backtrace: 58 bytes of message instead of 2,245.
template <class F>
ps_error* guarded(F&& f) {
  try {
    f();
    return nullptr;
  } catch (const RecomputationFailed& e) {
    return caught(e);
  } catch (const c10::Error& e) {
    return caught(e.what_without_backtrace());
  } catch (const std::exception& e) {
    return caught(e.what());
  } catch (...) {
    return caught("unknown C++ exception");
  }
}

}  // namespace ps
