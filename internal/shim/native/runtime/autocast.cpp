// Autocast for the length of a call.
#include "../internal.hpp"

#include <ATen/autocast_mode.h>

namespace ps {
namespace {

#if PS_TORCH >= 204
bool enabled(c10::DeviceType type) { return at::autocast::is_autocast_enabled(type); }
void enable(c10::DeviceType type, bool on) { at::autocast::set_autocast_enabled(type, on); }
at::ScalarType dtype(c10::DeviceType type) { return at::autocast::get_autocast_dtype(type); }
void set_dtype(c10::DeviceType type, at::ScalarType dtype) { at::autocast::set_autocast_dtype(type, dtype); }
#else
// Two of each: the processor's, and the GPU's for every accelerator.
bool enabled(c10::DeviceType type) {
  return type == c10::DeviceType::CPU ? at::autocast::is_cpu_enabled() : at::autocast::is_enabled();
}
void enable(c10::DeviceType type, bool on) {
  type == c10::DeviceType::CPU ? at::autocast::set_cpu_enabled(on) : at::autocast::set_enabled(on);
}
at::ScalarType dtype(c10::DeviceType type) {
  return type == c10::DeviceType::CPU ? at::autocast::get_autocast_cpu_dtype() : at::autocast::get_autocast_gpu_dtype();
}
void set_dtype(c10::DeviceType type, at::ScalarType dtype) {
  type == c10::DeviceType::CPU ? at::autocast::set_autocast_cpu_dtype(dtype) : at::autocast::set_autocast_gpu_dtype(dtype);
}
#endif

}  // namespace

void Autocast::begin(c10::DeviceType type, at::ScalarType to) {
  type_ = type;
  was_enabled_ = enabled(type);
  was_dtype_ = dtype(type);
  was_cached_ = at::autocast::is_autocast_cache_enabled();
  on_ = true;
  enable(type, true);
  set_dtype(type, to);
  at::autocast::set_autocast_cache_enabled(false);
}

void Autocast::end() {
  enable(type_, was_enabled_);
  set_dtype(type_, was_dtype_);
  at::autocast::set_autocast_cache_enabled(was_cached_);
}

bool lowers(const at::Tensor& t) { return enabled(t.device().type()); }

at::Tensor lowered(const at::Tensor& t) {
  const auto type = t.device().type();
  return enabled(type) ? at::autocast::cached_cast(dtype(type), t, type) : t;
}

}  // namespace ps
