// Memory of GPUs as an account, and which algorithms they compute by. Without CUDA there is nothing here but the door.
#include "../internal.hpp"
#include "account.hpp"

#include <ATen/Context.h>

#include <cstdlib>

#ifdef PENSTOCK_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <array>
#include <cstdio>
#include <mutex>
#include <unordered_map>

namespace ps {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
namespace pluggable = torch::cuda::CUDAPluggableAllocator;

// A block that is charged.
struct Charge {
  int32_t account = 0;
  int64_t bytes = 0;
  c10::DeleterFnPtr freed = nullptr;
};

// The charges, by address. Allocations of several workers meet here, so that there are several tables.
class Charges {
 public:
  void add(void* block, Charge c) {
    Part& p = part(block);
    std::lock_guard<std::mutex> lock(p.mutex);
    p.charges[block] = c;
  }
  bool find(void* block, Charge* out) {
    Part& p = part(block);
    std::lock_guard<std::mutex> lock(p.mutex);
    auto it = p.charges.find(block);
    if (it == p.charges.end()) return false;
    *out = it->second;
    return true;
  }
  bool remove(void* block, Charge* out) {
    Part& p = part(block);
    std::lock_guard<std::mutex> lock(p.mutex);
    auto it = p.charges.find(block);
    if (it == p.charges.end()) return false;
    *out = it->second;
    p.charges.erase(it);
    return true;
  }

 private:
  struct Part {
    std::mutex mutex;
    std::unordered_map<void*, Charge> charges;
  };
  Part& part(void* block) { return parts_[(reinterpret_cast<uintptr_t>(block) >> 9) % parts_.size()]; }  // blocks are multiples of 512 bytes
  std::array<Part, 16> parts_;
};

Charges& charges() {
  static Charges* all = new Charges;  // never destroyed, as in account.cpp
  return *all;
}

// Ends the charge of a block that is about to be freed.
Charge forget(void* block) {
  Charge c;
  if (charges().remove(block, &c) && c.account != 0) discharge(c.account, c.bytes, block);
  return c;
}

void freed(void* block) {
  if (block == nullptr) return;
  const Charge c = forget(block);
  if (c.freed != nullptr) c.freed(block);
}

// Counting stands in front of libtorch's allocator and charges the bytes that are asked for to the account of the call, as the CPU's does. Account 0 is not counted. What a block
// really takes, and where it lies, is the inner one's.
//
// What an allocator has to do differs between versions of libtorch. The base class is libtorch's own allocator with functions of the user: it has all of it, in each version. Only what
// is the same in all of them, or is called here, is passed on. The rest says that it is not supported (snapshots, histories, memory of other processes), or keeps no pools (CUDA graphs).
class Counting final : public pluggable::CUDAPluggableAllocator {
 public:
  explicit Counting(caching::CUDAAllocator* inner) : CUDAPluggableAllocator(nullptr, nullptr), inner_(inner) {}

  c10::DataPtr allocate(size_t n) override {
    const Charge c = begin(n);
    try {
      c10::DataPtr data = inner_->allocate(n);
      if (data.get() == nullptr) {
        if (c.account != 0) discharge(c.account, c.bytes, nullptr);
        return data;
      }
      const c10::Device device = data.device();
      const c10::DeleterFnPtr deleter = data.get_deleter();
      void* block = data.release_context();
      charges().add(block, {c.account, c.bytes, deleter});
      return {block, block, &freed, device};
    } catch (...) {
      failed(c);
    }
  }
  c10::DeleterFnPtr raw_deleter() const override { return &freed; }

  void* raw_alloc(size_t n) override {
    return raw(n, [&] { return inner_->raw_alloc(n); });
  }
  void* raw_alloc_with_stream(size_t n, cudaStream_t stream) override {
    return raw(n, [&] { return inner_->raw_alloc_with_stream(n, stream); });
  }
  void raw_delete(void* block) override {
    forget(block);
    inner_->raw_delete(block);
  }
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    Charge c;
    if (data.get() == nullptr || !charges().find(data.get(), &c) || c.freed == nullptr) return inner_->recordStream(data, stream);
    c10::DataPtr own(data.get(), data.get(), c.freed, data.device());  // the inner one knows its blocks by their deleter
    inner_->recordStream(own, stream);
    own.release_context();
  }

  void init(int devices) override { inner_->init(devices); }
  bool initialized() override { return inner_->initialized(); }
  double getMemoryFraction(c10::DeviceIndex d) override { return inner_->getMemoryFraction(d); }
  void setMemoryFraction(double fraction, c10::DeviceIndex d) override { inner_->setMemoryFraction(fraction, d); }
  void emptyCache() { inner_->emptyCache(); }                        // overrides libtorch 2.6's
  void emptyCache(c10::cuda::MempoolId_t) { inner_->emptyCache(); }  // overrides that of later ones; no pool is kept
  void enable(bool on) override { inner_->enable(on); }
  bool isEnabled() const override { return inner_->isEnabled(); }
  void cacheInfo(c10::DeviceIndex d, size_t* largest) override { inner_->cacheInfo(d, largest); }
  void* getBaseAllocation(void* block, size_t* n) override { return inner_->getBaseAllocation(block, n); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex d) override { return inner_->getDeviceStats(d); }
  void resetAccumulatedStats(c10::DeviceIndex d) override { inner_->resetAccumulatedStats(d); }
  void resetPeakStats(c10::DeviceIndex d) override { inner_->resetPeakStats(d); }
  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver o) override { inner_->attachOutOfMemoryObserver(std::move(o)); }
  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker t) override { inner_->attachAllocatorTraceTracker(std::move(t)); }
  void enablePeerAccess(c10::DeviceIndex d, c10::DeviceIndex to) override { inner_->enablePeerAccess(d, to); }
  cudaError_t memcpyAsync(void* to, int at, const void* from, int of, size_t n, cudaStream_t s, bool peer) override { return inner_->memcpyAsync(to, at, from, of, n, s, peer); }
  std::string name() override { return inner_->name(); }

 private:
  static Charge begin(size_t n) {
    const Charge c{current_gpu_account, static_cast<int64_t>(n), nullptr};
    if (c.account != 0) charge(c.account, c.bytes);
    return c;
  }

  // Takes a charge back, within a handler, and says whose memory was short.
  [[noreturn]] static void failed(const Charge& c) {
    if (c.account != 0) discharge(c.account, c.bytes, nullptr);
    try {
      throw;
    } catch (const c10::OutOfMemoryError& e) {
      ps::refuse(c.account, c.bytes, (std::string("; the GPU: ") + e.what_without_backtrace()).c_str());
    }
  }

  template <class F>
  static void* raw(size_t n, F&& alloc) {
    const Charge c = begin(n);
    try {
      void* block = alloc();
      if (block != nullptr) charges().add(block, c);
      else if (c.account != 0) discharge(c.account, c.bytes, nullptr);
      return block;
    } catch (...) {
      failed(c);
    }
  }

  caching::CUDAAllocator* inner_;
};

c10::DeviceIndex device_of(int32_t account) { return static_cast<c10::DeviceIndex>(account - PS_GPU_ACCOUNT); }

bool usable(int32_t account) { return device_of(account) < ps_devices(static_cast<int32_t>(c10::DeviceType::CUDA)) && caching::get()->initialized(); }

const GPUMemory memory{
    [](const c10::DataPtr& data, int32_t* account, int64_t* bytes) {
      Charge c;
      if (data.get_deleter() != &freed || !charges().find(data.get(), &c)) return false;
      *account = c.account;
      *bytes = c.bytes;
      return true;
    },
    [](int32_t account, ps_account* out) {
      if (!usable(account)) return;
      const auto stats = caching::get()->getDeviceStats(device_of(account));
      const auto all = static_cast<size_t>(c10::CachingDeviceAllocator::StatType::AGGREGATE);
      out->taken = stats.reserved_bytes[all].current;
      out->cached = out->taken - stats.active_bytes[all].current;
      out->requested = stats.requested_bytes[all].current;
    },
    [](int32_t account, int64_t limit) {
      if (device_of(account) >= ps_devices(static_cast<int32_t>(c10::DeviceType::CUDA))) return;
      at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);  // a limit may be set before anything is allocated
      const c10::cuda::CUDAGuard guard(device_of(account));
      size_t unused = 0, total = 0;
      C10_CUDA_CHECK(cudaMemGetInfo(&unused, &total));
      // Beside the limit, for the segments of 20 MiB that the allocator reserves: one for each of its three kinds of blocks and a half empty one.
      const int64_t reserved = limit + (int64_t{80} << 20);
      caching::setMemoryFraction(limit <= 0 || static_cast<size_t>(reserved) >= total ? 1.0 : static_cast<double>(reserved) / static_cast<double>(total), device_of(account));
    },
    [](int32_t account) {
      if (usable(account)) caching::emptyCache();
    }};

const bool counting = [] {
  auto* all = new Counting(caching::get());
  caching::allocator.store(all);
  c10::SetAllocator(c10::DeviceType::CUDA, all, 1);
  gpu_memory = &memory;
  return true;
}();

}  // namespace
}  // namespace ps

ps_error* ps_gpu_describe(int32_t index, char* name, int32_t capacity, int64_t* unused) {
  return ps::guarded([&] {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
    cudaDeviceProp properties;
    C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
    std::snprintf(name, static_cast<size_t>(capacity), "%s", properties.name);
    size_t left = 0, total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&left, &total));
    *unused = static_cast<int64_t>(left);
  });
}
#else
ps_error* ps_gpu_describe(int32_t, char*, int32_t, int64_t*) { return ps::make_error(PS_FAILED, "this build has no CUDA"); }
#endif

void ps_deterministic(int32_t on) {
  auto& context = at::globalContext();
  if (on != 0) setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);  // what libtorch asks for; the user's own stays
  context.setDeterministicAlgorithms(on != 0, /*warn_only=*/false);
  context.setDeterministicCuDNN(on != 0);
#if PS_TORCH >= 202
  context.setDeterministicFillUninitializedMemory(false);  // nothing reads it
#endif
}
