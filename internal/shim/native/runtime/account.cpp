// Memory as an account: the CPU allocator of the process.
//
// Every block carries a header that says whose it is, so that a block freed on any thread, at any time, is given back to the
// account that it was charged to. An account counts the bytes that were asked for, exactly; headers and the rounding to pages are not counted. Where blocks come from is arena.hpp's.
#include "account.hpp"
#include "arena.hpp"
#include "../internal.hpp"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>
#include <malloc.h>
#include <mutex>
#include <utility>

namespace ps {

thread_local int32_t current_account = 0, current_gpu_account = 0;
const GPUMemory* gpu_memory = nullptr;

namespace {

struct Header {
  int64_t account;
  int64_t size;  // bytes charged
  Block block;
};
static_assert(sizeof(Header) <= kAlign, "the header lives in the alignment in front of the data");

struct Account {
  std::mutex mutex;
  int64_t live = 0, limit = 0;
  int64_t peak = 0, own = 0;  // since they were reset
  Arena arena;
};

// Never destroyed: tensors in static storage are freed after our destructors would have run.
Account* accounts() {
  static Account* all = new Account[PS_ACCOUNTS];
  return all;
}

[[noreturn]] void refuse(int32_t index, int64_t limit, int64_t live, int64_t n, const char* why) {
  failure = {c10::str("out of memory: limit ", limit, " bytes, live ", live, ", requested ", n, why), index, limit, live, n};
  TORCH_CHECK(false, failure.message);
}

void* take(size_t n) {
  const int32_t index = current_account;
  const auto size = static_cast<int64_t>(n);
  const int64_t live = reserve(index, size);
  const Block block = accounts()[index].arena.get(n + kAlign);
  if (block.base == nullptr) {
    discharge(index, size);
    ps::refuse(index, size, "");
  }
  count_peak(index, live);
  *static_cast<Header*>(block.base) = {index, size, block};
  return static_cast<char*>(block.base) + kAlign;
}

void put(void* data) {
  if (data == nullptr) return;
  const Header h = *reinterpret_cast<Header*>(static_cast<char*>(data) - kAlign);
  discharge(static_cast<int32_t>(h.account), h.size);
  accounts()[h.account].arena.put(h.block);
}

// The members repeat c10::Allocator's virtual functions without `override`: their constness and number differ between
// libtorch 1.13 and 2.x, and whichever the linked version declares is the one that is overridden.
struct AccountAllocator final : public c10::Allocator {
  static c10::DataPtr make(size_t n) {
    void* data = n == 0 ? nullptr : take(n);
    return {data, data, &put, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DataPtr allocate(size_t n) const { return make(n); }
  c10::DataPtr allocate(size_t n) { return make(n); }
  c10::DeleterFnPtr raw_deleter() const { return &put; }
  void copy_data(void* to, const void* from, size_t n) const { memcpy(to, from, n); }
};

const bool installed = [] {
  c10::SetCPUAllocator(new AccountAllocator, 100);
  return true;
}();

}  // namespace

int64_t reserve(int32_t account, int64_t bytes) {
  Account& a = accounts()[account];
  std::lock_guard<std::mutex> lock(a.mutex);
  if (a.limit > 0 && a.live + bytes > a.limit) refuse(account, a.limit, a.live, bytes, "");
  return a.live += bytes;
}

void count_peak(int32_t account, int64_t live) {
  Account& a = accounts()[account];
  std::lock_guard<std::mutex> lock(a.mutex);
  a.peak = std::max(a.peak, live);
  a.own = std::max(a.own, live);
}

void discharge(int32_t account, int64_t bytes) {
  Account& a = accounts()[account];
  std::lock_guard<std::mutex> lock(a.mutex);
  a.live -= bytes;
}

void refuse(int32_t account, int64_t bytes, const char* why) {
  int64_t limit, live;
  {
    Account& a = accounts()[account];
    std::lock_guard<std::mutex> lock(a.mutex);
    limit = a.limit, live = a.live;
  }
  refuse(account, limit, live, bytes, why);
}

}  // namespace ps

void ps_account_get(int32_t i, ps_account* out) {
  auto& a = ps::accounts()[i];
  {
    std::lock_guard<std::mutex> lock(a.mutex);
    *out = {a.live, a.peak, a.limit, 0, 0, 0};
    a.arena.count(&out->cached, &out->taken);
  }
  if (i >= PS_GPU_ACCOUNT && ps::gpu_memory != nullptr) ps::gpu_memory->count(i, out);
}

void ps_account_limit(int32_t i, int64_t limit) {
  auto& a = ps::accounts()[i];
  {
    std::lock_guard<std::mutex> lock(a.mutex);
    a.limit = limit;
  }
  if (limit <= 0) return;
  if (i >= PS_GPU_ACCOUNT && ps::gpu_memory != nullptr) return ps::gpu_memory->limit(i, limit);
  a.arena.trim(static_cast<size_t>(limit));
}

void ps_account_reset_peak(int32_t i) {
  auto& a = ps::accounts()[i];
  std::lock_guard<std::mutex> lock(a.mutex);
  a.peak = a.live;
}

void ps_account_raise_peak(int32_t i, int64_t peak) {
  auto& a = ps::accounts()[i];
  std::lock_guard<std::mutex> lock(a.mutex);
  a.peak = std::max(a.peak, peak);
}

void ps_account_trim(int32_t i) {
  if (i >= PS_GPU_ACCOUNT && ps::gpu_memory != nullptr) return ps::gpu_memory->trim(i);
  ps::accounts()[i].arena.trim(0);
}

int64_t ps_account_own(int32_t i) {
  auto& a = ps::accounts()[i];
  std::lock_guard<std::mutex> lock(a.mutex);
  return std::exchange(a.own, a.live);
}

void ps_heap_trim(void) { malloc_trim(0); }
