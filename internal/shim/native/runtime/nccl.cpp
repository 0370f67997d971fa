// Sends and receives between GPUs of several processes. Each direction has a communicator of its own, as NCCL keeps one order a communicator and knows no tags.
//
// libtorch's ProcessGroupNCCL is not used: its watchdog ends the process, and its streams and its record_stream are its own.
#include "../internal.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#ifdef PENSTOCK_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

namespace {

struct Communicator {
  ncclComm_t comm = nullptr;
  int rank = 0;
  int32_t device = 0;
};

Communicator& communicator_of(ps_nccl c) { return *reinterpret_cast<Communicator*>(c); }

void check(ncclResult_t r, ncclComm_t comm) {
  if (r == ncclSuccess || r == ncclInProgress) return;
  const char* last = comm != nullptr ? ncclGetLastError(comm) : nullptr;
  TORCH_CHECK(false, "NCCL: ", ncclGetErrorString(r), last != nullptr && *last != 0 ? std::string(": ") + last : std::string());
}

// Waits until a call on a communicator, none of which blocks, is no longer in progress. It returns early when it is stopped.
ncclResult_t settled(ncclComm_t comm, const volatile int32_t* stop) {
  auto pause = std::chrono::microseconds(1);
  for (;;) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
    if (asked != ncclSuccess) return asked;
    if (state != ncclInProgress || *stop != 0) return state;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds(1000));
  }
}

}  // namespace

ps_error* ps_nccl_id(uint8_t* id) {
  return ps::guarded([&] {
    static_assert(sizeof(ncclUniqueId) == PS_NCCL_ID, "the size of NCCL's ids");
    ncclUniqueId unique;
    check(ncclGetUniqueId(&unique), nullptr);
    memcpy(id, &unique, sizeof unique);
  });
}

ps_error* ps_nccl_open(const uint8_t* id, int32_t rank, int32_t device, const volatile int32_t* stop, ps_nccl* out) {
  return ps::guarded([&] {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    ncclUniqueId unique;
    memcpy(&unique, id, sizeof unique);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    auto c = std::make_unique<Communicator>();
    c->rank = rank;
    c->device = device;
    ncclResult_t r = ncclCommInitRankConfig(&c->comm, 2, unique, rank, &config);
    if (r == ncclInProgress || r == ncclSuccess) r = settled(c->comm, stop);
    if (r != ncclSuccess) {
      const bool stopped = r == ncclInProgress;
      const std::string why = stopped ? "the run has failed elsewhere" : ncclGetErrorString(r);
      if (c->comm != nullptr) ncclCommAbort(c->comm);
      TORCH_CHECK(false, "NCCL: joining: ", why);
    }
    *out = reinterpret_cast<ps_nccl>(c.release());
  });
}

ps_error* ps_nccl_transfer(const ps_nccl* comms, const ps_tensor* tensors, const int64_t* streams, int32_t n, const volatile int32_t* stop) {
  return ps::guarded([&] {
    if (n == 0) return;
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(communicator_of(comms[0]).device));
    std::vector<at::Tensor> memory;
    std::vector<cudaStream_t> queues;
    for (int32_t i = 0; i < n; i++) {
      const at::Tensor t = ps::borrow(tensors[i]).detach();
      const Communicator& c = communicator_of(comms[i]);
      TORCH_CHECK(t.is_non_overlapping_and_dense(), "the tensor is not dense: its sizes are ", t.sizes(), " and its strides ", t.strides());
      TORCH_CHECK(t.is_cuda() && t.get_device() == c.device, "the tensor is on ", t.device(), ", and the communicator on cuda:", c.device);
      memory.push_back(t);
      queues.push_back(c10::cuda::CUDAStream(ps::stream(static_cast<int32_t>(c10::DeviceType::CUDA), c.device, streams[i])).stream());
    }
    check(ncclGroupStart(), nullptr);
    ncclResult_t r = ncclSuccess;
    for (int32_t i = 0; i < n && (r == ncclSuccess || r == ncclInProgress); i++) {
      const Communicator& c = communicator_of(comms[i]);
      r = c.rank == 0 ? ncclSend(memory[i].data_ptr(), memory[i].nbytes(), ncclUint8, 1, c.comm, queues[i])
                      : ncclRecv(memory[i].data_ptr(), memory[i].nbytes(), ncclUint8, 0, c.comm, queues[i]);
    }
    const ncclResult_t ended = ncclGroupEnd();
    check(r, nullptr);
    check(ended, nullptr);
    for (int32_t i = 0; i < n; i++) {
      const ncclComm_t comm = communicator_of(comms[i]).comm;
      check(settled(comm, stop), comm);
      TORCH_CHECK(*stop == 0, "NCCL: the run has failed elsewhere");
    }
  });
}

ps_error* ps_nccl_error(ps_nccl c) {
  return ps::guarded([&] {
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(communicator_of(c).comm, &state), nullptr);
    check(state, communicator_of(c).comm);
  });
}

// Each on a thread of its own: one that is aborted may wait for another process, which waits for another one of these.
void ps_nccl_abort(const ps_nccl* comms, int32_t n) {
  std::vector<std::thread> threads;
  for (int32_t i = 0; i < n; i++) {
    threads.emplace_back([c = &communicator_of(comms[i])] {
      ncclCommAbort(c->comm);
      delete c;
    });
  }
  for (std::thread& t : threads) t.join();
}

void ps_nccl_close(const ps_nccl* comms, int32_t n, const volatile int32_t* stop) {
  std::vector<std::thread> threads;
  for (int32_t i = 0; i < n; i++) {
    threads.emplace_back([c = &communicator_of(comms[i]), stop] {
      ncclResult_t r = ncclCommFinalize(c->comm);
      if (r == ncclInProgress || r == ncclSuccess) r = settled(c->comm, stop);
      if (r == ncclSuccess) ncclCommDestroy(c->comm);
      else ncclCommAbort(c->comm);
      delete c;
    });
  }
  for (std::thread& t : threads) t.join();
}

ps_error* ps_gpu_uuid(int32_t device, char out[33]) {
  return ps::guarded([&] {
    cudaDeviceProp p;
    C10_CUDA_CHECK(cudaGetDeviceProperties(&p, device));
    for (int i = 0; i < 16; i++) snprintf(out + 2 * i, 3, "%02x", static_cast<unsigned char>(p.uuid.bytes[i]));
  });
}

#else

namespace {
ps_error* no_nccl() { return ps::make_error(PS_FAILED, "this build has no NCCL"); }
}  // namespace

ps_error* ps_nccl_id(uint8_t*) { return no_nccl(); }
ps_error* ps_nccl_open(const uint8_t*, int32_t, int32_t, const volatile int32_t*, ps_nccl*) { return no_nccl(); }
ps_error* ps_nccl_transfer(const ps_nccl*, const ps_tensor*, const int64_t*, int32_t, const volatile int32_t*) { return no_nccl(); }
ps_error* ps_nccl_error(ps_nccl) { return no_nccl(); }
void ps_nccl_abort(const ps_nccl*, int32_t) {}
void ps_nccl_close(const ps_nccl*, int32_t, const volatile int32_t*) {}
ps_error* ps_gpu_uuid(int32_t, char*) { return no_nccl(); }

#endif
