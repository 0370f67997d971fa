// Memory of GPUs as an account, and which algorithms they compute by. Without CUDA there is nothing here but the door.
#include "../internal.hpp"
#include "account.hpp"

#include <ATen/Context.h>

#include <cstdlib>
#include <dlfcn.h>
#include <string>

#ifdef PENSTOCK_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ps {
namespace {

// What libtorch and cuBLAS read of the environment once, some of it at the first product. What the user has set stays.
const bool environment = [] {
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);  // workspaces with which products have the same bits each time
  // Segments that grow, and of which unused pages can be given back: blocks of many sizes leave few gaps.
  if (getenv("PYTORCH_ALLOC_CONF") == nullptr) setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", 0);
  return true;
}();

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
  if (charges().remove(block, &c) && c.account != 0) discharge(c.account, c.bytes);
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
    c10::DataPtr data;
    Charge c = charged(n, [&] {
      data = inner_->allocate(n);
      return data.get();
    });
    if (data.get() == nullptr) return data;
    const c10::Device device = data.device();
    c.freed = data.get_deleter();
    void* block = data.release_context();
    charges().add(block, c);
    return {block, block, &freed, device};
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
  // Charges what the call asks for, if alloc gives a block.
  template <class F>
  static Charge charged(size_t n, F&& alloc) {
    const Charge c{current_gpu_account, static_cast<int64_t>(n), nullptr};
    const bool counted = c.account != 0;
    const int64_t live = counted ? reserve(c.account, c.bytes) : 0;
    bool there = false;
    try {
      there = alloc() != nullptr;
    } catch (const c10::OutOfMemoryError& e) {
      if (counted) discharge(c.account, c.bytes);
      ps::refuse(c.account, c.bytes, (std::string("; the GPU: ") + e.what_without_backtrace()).c_str());
    } catch (...) {
      if (counted) discharge(c.account, c.bytes);
      throw;
    }
    if (counted && there) count_peak(c.account, live);
    else if (counted) discharge(c.account, c.bytes);
    return c;
  }

  template <class F>
  static void* raw(size_t n, F&& alloc) {
    void* block = nullptr;
    const Charge c = charged(n, [&] { return block = alloc(); });
    if (block != nullptr) charges().add(block, c);
    return block;
  }

  caching::CUDAAllocator* inner_;
};

c10::DeviceIndex device_of(int32_t account) { return static_cast<c10::DeviceIndex>(account - PS_GPU_ACCOUNT); }

constexpr auto of_all = static_cast<size_t>(c10::CachingDeviceAllocator::StatType::AGGREGATE);

c10::CachingDeviceAllocator::DeviceStats stats_of(int32_t account) { return caching::get()->getDeviceStats(device_of(account)); }

bool usable(int32_t account) { return device_of(account) < ps_devices(static_cast<int32_t>(c10::DeviceType::CUDA)) && caching::get()->initialized(); }

const GPUMemory memory{
    [](int32_t account, ps_account* out) {
      if (!usable(account)) return;
      const auto stats = stats_of(account);
      out->taken = stats.reserved_bytes[of_all].current;
      out->cached = out->taken - stats.active_bytes[of_all].current;
      out->requested = stats.requested_bytes[of_all].current;
    },
    // What is reserved has no bound. It is more than what is live, by how much depends on sizes and streams, and a bound would refuse steps for which the limit has room.
    [](int32_t account, int64_t limit) {
      if (usable(account) && stats_of(account).reserved_bytes[of_all].current > limit) caching::emptyCache();
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

// A handle of cuBLAS belongs to a thread. With its first product on a stream libtorch takes a workspace for the two of them from the allocator, of 32 MiB, and one of cuBLASLt with the first that
// has a bias, and keeps them as long as the process lives. They are no memory of the layer that comes first: here they are taken, on no account.
void prepare_products(const ps_mode* m) {
  if (m->device_index < 0) return;
  thread_local std::vector<std::pair<int32_t, int64_t>> ready;
  const std::pair<int32_t, int64_t> on{m->device_index, m->stream};
  if (std::find(ready.begin(), ready.end(), on) != ready.end()) return;
  ps_mode nobody = *m;
  nobody.account = 0;
  const Enter enter(&nobody);
  const at::Tensor x = at::zeros({16, 16}, at::TensorOptions().dtype(at::kFloat).device(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(m->device_index))));
  at::mm(x, x);
  at::addmm(x.select(0, 0), x, x);
  ready.push_back(on);
}

}  // namespace ps

ps_error* ps_prepare_products(const ps_mode* mode) {
  return ps::guarded([&] { ps::prepare_products(mode); });
}

ps_error* ps_gpu_model(int32_t index, char* name, int32_t capacity) {
  return ps::guarded([&] {
    cudaDeviceProp properties;
    C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
    std::snprintf(name, static_cast<size_t>(capacity), "%s", properties.name);
  });
}

ps_error* ps_gpu_unused(int32_t index, int64_t* bytes) {
  return ps::guarded([&] {
    ps_mode mode{};
    mode.device_type = static_cast<int32_t>(c10::DeviceType::CUDA), mode.device_index = index, mode.peer_index = -1;
    ps::prepare_products(&mode);
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
    size_t left = 0, total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&left, &total));
    *bytes = static_cast<int64_t>(left);
  });
}

void ps_gpu_refuse_waits(int32_t on) { c10::cuda::warning_state().set_sync_debug_mode(on != 0 ? c10::cuda::SyncDebugMode::L_ERROR : c10::cuda::SyncDebugMode::L_DISABLED); }
#else
void ps_gpu_refuse_waits(int32_t) {}
ps_error* ps_prepare_products(const ps_mode*) { return nullptr; }
ps_error* ps_gpu_model(int32_t, char*, int32_t) { return ps::make_error(PS_FAILED, "this build has no CUDA"); }
ps_error* ps_gpu_unused(int32_t, int64_t*) { return ps::make_error(PS_FAILED, "this build has no CUDA"); }
#endif

void ps_gpu_numerics(int32_t deterministic, int32_t tf32) {
  auto& context = at::globalContext();
  context.setDeterministicAlgorithms(deterministic != 0, /*warn_only=*/false);
  context.setDeterministicCuDNN(deterministic != 0);
  context.setBenchmarkCuDNN(false);  // it would choose algorithms by time, others from run to run
#if PS_TORCH >= 202
  context.setDeterministicFillUninitializedMemory(false);  // nothing reads it
#endif
  // Nothing may use setFloat32Precision beside these, which libtorch 2.9 has too: it refuses to read a mixture.
  context.setAllowTF32CuDNN(tf32 != 0);
  context.setAllowTF32CuBLAS(tf32 != 0);
}

int32_t ps_gpu_numerics_in_force(void) {
  const auto& context = at::globalContext();
  return (context.deterministicAlgorithms() && context.deterministicCuDNN() ? PS_DETERMINISTIC : 0) | (context.allowTF32CuDNN() ? PS_TF32_CONVOLUTIONS : 0) |
         (context.allowTF32CuBLAS() ? PS_TF32_PRODUCTS : 0);
}

const char* ps_gpu_libraries(void) {
  static const std::string text = [] {
    std::string all;
    const auto add = [&all](const char* name, int major, int minor, int patch) {
      all += (all.empty() ? "" : ", ") + std::string(name) + " " + std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
    };
    int version[3] = {};
    if (auto property = reinterpret_cast<int (*)(int, int*)>(dlsym(RTLD_DEFAULT, "cublasGetProperty"))) {
      for (int i = 0; i < 3; i++) property(i, &version[i]);
      add("cuBLAS", version[0], version[1], version[2]);
    }
    if (auto number = reinterpret_cast<size_t (*)()>(dlsym(RTLD_DEFAULT, "cudnnGetVersion"))) {
      const int n = static_cast<int>(number()), major = n < 10000 ? 1000 : 10000;  // 8907 is 8.9.7, and 91900 is 9.19.0
      add("cuDNN", n / major, n % major / 100, n % 100);
    }
    return all;
  }();
  return text.c_str();
}

const char* ps_environment(const char* name) { return getenv(name); }
