// A hook of c10's CPU allocator that counts the bytes asked for: live, and at most. Blocks from
// before the hook is set stay with the allocator that made them.
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <atomic>
#include <cstdint>
#include <cstring>

namespace {

constexpr size_t kHeader = 64; // keeps the alignment of tensors
std::atomic<int64_t> live_bytes{0}, peak_bytes{0};

void* take(size_t n) {
  char* block = static_cast<char*>(c10::alloc_cpu(n + kHeader));
  std::memcpy(block, &n, sizeof n);
  const int64_t now = live_bytes += static_cast<int64_t>(n);
  int64_t most = peak_bytes;
  while (now > most && !peak_bytes.compare_exchange_weak(most, now)) {
  }
  return block + kHeader;
}

void put(void* data) {
  if (data == nullptr) return;
  char* block = static_cast<char*>(data) - kHeader;
  size_t n;
  std::memcpy(&n, block, sizeof n);
  live_bytes -= static_cast<int64_t>(n);
  c10::free_cpu(block);
}

struct Counting final : public c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    void* data = n == 0 ? nullptr : take(n);
    return {data, data, &put, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &put; }
  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }
};

} // namespace

extern "C" {
void install() { c10::SetCPUAllocator(new Counting, 100); }
int64_t live() { return live_bytes; }
int64_t peak() { return peak_bytes; }
void reset() { peak_bytes = live_bytes.load(); }
}
