// Streams and events of GPUs, by way of what libtorch knows of every kind of accelerator, so that nothing here needs CUDA's headers.
#include "../internal.hpp"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#ifdef PENSTOCK_CUDA
#include <cuda_runtime_api.h>
#include <nccl.h>
#endif

namespace {

c10::Event& event_of(ps_event e) { return *reinterpret_cast<c10::Event*>(e); }

}  // namespace

ps_error* ps_stream_open(int32_t type, int32_t index, int64_t* stream) {
  return ps::guarded([&] {
    const c10::Device device(static_cast<c10::DeviceType>(type), static_cast<c10::DeviceIndex>(index));
    *stream = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device).id();
  });
}

ps_error* ps_event_record(int32_t type, int32_t index, int64_t stream, int32_t timed, ps_event* out) {
  return ps::guarded([&] {
    auto e = std::make_unique<c10::Event>(static_cast<c10::DeviceType>(type), timed != 0 ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT);
    e->record(ps::stream(type, index, stream));
    *out = reinterpret_cast<ps_event>(e.release());
  });
}

ps_error* ps_event_wait(ps_event e, int32_t type, int32_t index, int64_t stream) {
  return ps::guarded([&] { event_of(e).block(ps::stream(type, index, stream)); });
}

#if PS_TORCH >= 206
ps_error* ps_event_synchronize(ps_event e) {
  return ps::guarded([&] { event_of(e).synchronize(); });
}

ps_error* ps_event_seconds(ps_event from, ps_event to, double* out) {
  return ps::guarded([&] { *out = event_of(from).elapsedTime(event_of(to)) / 1000; });
}
#else
ps_error* ps_event_synchronize(ps_event) { return ps::make_error(PS_FAILED, "libtorch " TORCH_VERSION " cannot wait for an event"); }
ps_error* ps_event_seconds(ps_event, ps_event, double*) { return ps::make_error(PS_FAILED, "libtorch " TORCH_VERSION " cannot time events"); }
#endif

void ps_event_free(ps_event e) { delete reinterpret_cast<c10::Event*>(e); }

int32_t ps_devices(int32_t type) {
  if (type == 0) return 1;
  const auto kind = static_cast<c10::DeviceType>(type);
  return c10::impl::hasDeviceGuardImpl(kind) ? c10::impl::VirtualGuardImpl(kind).deviceCount() : 0;
}

#ifdef PENSTOCK_CUDA
int32_t ps_cuda_version(void) { return CUDART_VERSION; }
int32_t ps_nccl_version(void) {
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess ? version : 0;
}
#else
int32_t ps_cuda_version(void) { return 0; }
int32_t ps_nccl_version(void) { return 0; }
#endif
