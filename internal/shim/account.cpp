// Memory as an account: the CPU allocator of the process.
//
// Every block carries a header that says whose it is, so that a block freed on any thread, at any time, is given back to the
// account that it was charged to. An account counts the bytes that were asked for, exactly; the rounding of its cache is not counted.
//
// Freed blocks of 32 KiB and more are kept for reuse: a training step asks for the same sizes again and again, and fresh pages
// are faulted in one by one (a step that does so took 1.5 times longer). The cache never makes the account hold more
// than its own highest live count, so it costs no memory that the program did not need before.
#include "internal.hpp"
#include "loans.hpp"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <vector>

namespace ps {

thread_local int32_t current_account = 0;

namespace {

constexpr size_t kAlign = 64;               // c10's own alignment (gAlignment)
constexpr size_t kCacheFrom = 32 * 1024;    // smaller blocks: malloc's own bins are as good

struct Header {
  uint64_t account;
  uint64_t size;      // bytes charged
  uint64_t capacity;  // bytes behind the header
};
static_assert(sizeof(Header) <= kAlign, "the header lives in the alignment in front of the data");

struct Account {
  std::mutex mutex;
  int64_t live = 0, peak = 0, limit = 0, cached = 0, highest = 0;
  std::map<size_t, std::vector<void*>> free_blocks;  // by capacity
  Loans loans;
};

// Never destroyed: tensors in static storage are freed after our destructors would have run.
Account* accounts() {
  static Account* all = new Account[PS_ACCOUNTS];
  return all;
}

// Eight sizes per doubling: blocks of nearly equal size share a bin, at most 12.5 % is lost.
size_t rounded(size_t n) {
  if (n < kCacheFrom) return n;
  size_t step = size_t(1) << (63 - __builtin_clzll(n));
  step = std::max<size_t>(step >> 3, 4096);
  return (n + step - 1) / step * step;
}

// Blocks of 4 MiB and more ask for huge pages: a matrix product walks through columns, and with small pages it misses the TLB at nearly every step.
constexpr size_t kHugeFrom = size_t(4) << 20, kHugePage = size_t(2) << 20;

void* system_block(size_t capacity) {
  void* p = nullptr;
  const bool huge = capacity >= kHugeFrom;
  if (posix_memalign(&p, huge ? kHugePage : kAlign, capacity + kAlign) != 0) return nullptr;
#ifdef MADV_HUGEPAGE
  if (huge) madvise(p, capacity + kAlign, MADV_HUGEPAGE);
#endif
  return p;
}

// Gives cached blocks back, largest first, until the account holds at most `most` bytes. The mutex is held.
void trim(Account& a, int64_t most) {
  while (a.cached > 0 && a.live + a.cached > most) {
    auto it = std::prev(a.free_blocks.end());
    free(it->second.back());
    it->second.pop_back();
    a.cached -= static_cast<int64_t>(it->first);
    if (it->second.empty()) a.free_blocks.erase(it);
  }
}

[[noreturn]] void refuse(int32_t index, int64_t limit, int64_t live, size_t n) {
  failure.out_of_memory = true;
  failure.account = index;
  failure.limit = limit;
  failure.live = live;
  failure.requested = static_cast<int64_t>(n);
  TORCH_CHECK(false, "out of memory: limit ", limit, " bytes, live ", live, ", requested ", n);
}

void* take(size_t n) {
  const int32_t index = current_account;
  Account& a = accounts()[index];
  const size_t capacity = rounded(n);
  void* base = nullptr;
  int64_t want;
  {
    std::lock_guard<std::mutex> lock(a.mutex);
    want = a.live + static_cast<int64_t>(n);
    if (a.limit > 0 && want > a.limit) refuse(index, a.limit, a.live, n);
    a.live = want;
    a.loans.took(want);
    if (capacity >= kCacheFrom) {
      auto it = a.free_blocks.find(capacity);
      if (it != a.free_blocks.end()) {
        base = it->second.back();
        it->second.pop_back();
        a.cached -= static_cast<int64_t>(capacity);
        if (it->second.empty()) a.free_blocks.erase(it);
      } else {
        trim(a, std::max(a.highest, want));
      }
    }
  }
  if (base == nullptr) base = system_block(capacity);
  if (base == nullptr) {
    std::lock_guard<std::mutex> lock(a.mutex);
    trim(a, 0);
    base = system_block(capacity);
    if (base == nullptr) {
      a.live -= static_cast<int64_t>(n);
      refuse(index, a.limit, a.live, n);
    }
  }
  {
    std::lock_guard<std::mutex> lock(a.mutex);
    a.peak = std::max(a.peak, want);
    a.highest = std::max(a.highest, want);
  }
  auto* h = static_cast<Header*>(base);
  h->account = static_cast<uint64_t>(index);
  h->size = n;
  h->capacity = capacity;
  return static_cast<char*>(base) + kAlign;
}

void put(void* data) {
  if (data == nullptr) return;
  void* base = static_cast<char*>(data) - kAlign;
  const Header h = *static_cast<Header*>(base);
  Account& a = accounts()[h.account];
  {
    std::lock_guard<std::mutex> lock(a.mutex);
    a.live -= static_cast<int64_t>(h.size);
    a.loans.freed(data);
    if (h.capacity >= kCacheFrom && a.live + a.cached + static_cast<int64_t>(h.capacity) <= a.highest) {
      a.free_blocks[h.capacity].push_back(base);
      a.cached += static_cast<int64_t>(h.capacity);
      return;
    }
  }
  free(base);
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
}  // namespace ps

void ps_account_get(int32_t i, ps_account* out) {
  auto& a = ps::accounts()[i];
  std::lock_guard<std::mutex> lock(a.mutex);
  *out = {a.live, a.peak, a.limit, a.cached};
}

void ps_account_limit(int32_t i, int64_t limit) {
  auto& a = ps::accounts()[i];
  std::lock_guard<std::mutex> lock(a.mutex);
  a.limit = limit;
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
  auto& a = ps::accounts()[i];
  std::lock_guard<std::mutex> lock(a.mutex);
  ps::trim(a, 0);
}

uint64_t ps_account_lend(int32_t i, ps_tensor t, int64_t* bytes) {
  *bytes = 0;
  const at::Tensor& x = ps::borrow(t);
  if (!x.has_storage()) return 0;
  const auto& data = x.storage().data_ptr();
  if (data.get() == nullptr || data.get_deleter() != &ps::put) return 0;
  const auto& h = *reinterpret_cast<ps::Header*>(static_cast<char*>(data.get_context()) - ps::kAlign);
  if (static_cast<int32_t>(h.account) != i) return 0;
  *bytes = static_cast<int64_t>(h.size);
  auto& a = ps::accounts()[i];
  std::lock_guard<std::mutex> lock(a.mutex);
  return a.loans.lend(data.get_context(), *bytes);
}

void ps_account_end_loan(int32_t i, uint64_t loan) {
  auto& a = ps::accounts()[i];
  std::lock_guard<std::mutex> lock(a.mutex);
  a.loans.end(loan);
}

int64_t ps_account_own(int32_t i) {
  auto& a = ps::accounts()[i];
  std::lock_guard<std::mutex> lock(a.mutex);
  return a.loans.own(a.live);
}
