#include "arena.hpp"

#include <algorithm>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>

namespace ps {
namespace {

constexpr size_t kPage = 4096;

size_t whole_pages(size_t n) { return (n + kPage - 1) / kPage * kPage; }

void* pointer(uintptr_t at) { return reinterpret_cast<void*>(at); }

// Free pages that are kept beyond what blocks in use have taken at most, as free pages are seldom where they are needed. With none, five steps of a ResNet-50 under a tight limit fault in 113,000 pages, with a
// 64th 75,000, with a 32nd 58,000.
size_t slack(size_t most) { return most / 64; }

}  // namespace

// Addresses cost nothing. Twice the machine's memory leaves space between blocks of any sizes.
bool Arena::reserve() {
  if (tried_) return reserved_;
  tried_ = true;
  const size_t bytes = 2 * static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return false;
#ifdef MADV_HUGEPAGE
  // A matrix product walks through columns, and with small pages it misses the TLB at nearly every step. The system takes a huge page only where all of it is mapped.
  madvise(p, bytes, MADV_HUGEPAGE);
#endif
  free_.add({reinterpret_cast<uintptr_t>(p), bytes, false});
  return reserved_ = true;
}

// Pages of the arena, or null: none may be left, or the process may have too many mappings (vm.max_map_count). The mutex is held.
void* Arena::map(size_t bytes) {
  if (!reserve()) return nullptr;
  const uintptr_t at = free_.place(bytes);
  if (at == 0) return nullptr;
  bool failed = false;
  for (const Span& s : free_.take(at, bytes)) failed = failed || mprotect(pointer(s.at), s.bytes, PROT_READ | PROT_WRITE) != 0;
  if (!failed) return pointer(at);
  madvise(pointer(at), bytes, MADV_DONTNEED);
  mprotect(pointer(at), bytes, PROT_NONE);
  free_.add({at, bytes, false});
  return nullptr;
}

Block Arena::get(size_t n) {
  std::lock_guard<std::mutex> lock(mutex_);
  Block b{nullptr, n, false};
  if (n >= kMapFrom) {
    b.bytes = whole_pages(n);
    b.base = map(b.bytes);
    b.mapped = b.base != nullptr;
  }
  if (!b.mapped && posix_memalign(&b.base, kAlign, b.bytes) != 0) {
    shrink(0);
    if (posix_memalign(&b.base, kAlign, b.bytes) != 0) return {};
  }
  used_ += b.bytes;
  most_ = std::max(most_, used_);
  shrink(most_ + slack(most_));
  return b;
}

void Arena::put(const Block& b) {
  std::lock_guard<std::mutex> lock(mutex_);
  used_ -= b.bytes;
  if (b.mapped) {
    free_.add({reinterpret_cast<uintptr_t>(b.base), b.bytes, true});
    shrink(most_ + slack(most_));
  } else {
    free(b.base);
  }
}

void Arena::trim(size_t most) {
  std::lock_guard<std::mutex> lock(mutex_);
  shrink(most);
  most_ = std::min(most_, std::max(used_, most));
}

void Arena::count(int64_t* free, int64_t* all) {
  std::lock_guard<std::mutex> lock(mutex_);
  *free = static_cast<int64_t>(free_.mapped());
  *all = static_cast<int64_t>(used_ + free_.mapped());
}

// Returns free pages until all blocks take at most `most` bytes. The mutex is held.
void Arena::shrink(size_t most) {
  while (free_.mapped() > 0 && used_ + free_.mapped() > most) {
    Span s = free_.take_smallest(whole_pages(used_ + free_.mapped() - most));
    madvise(pointer(s.at), s.bytes, MADV_DONTNEED);
    // Where it cannot be protected, because that would make too many mappings, it is as good as mapped: the pages are gone.
    s.mapped = false;
    mprotect(pointer(s.at), s.bytes, PROT_NONE);
    free_.add(s);
  }
}

}  // namespace ps
