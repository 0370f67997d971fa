// Memory from the system, and what is kept of it for reuse. Nothing here knows libtorch or accounts.
#pragma once
#include "spans.hpp"

#include <mutex>

namespace ps {

constexpr size_t kAlign = 64;           // of every block; c10's own alignment (gAlignment)
constexpr size_t kMapFrom = 32 * 1024;  // smaller blocks are malloc's, whose bins are as good

struct Block {
  void* base = nullptr;
  size_t bytes = 0;
  bool mapped = false;  // of the arena's own pages
};

// The blocks of one account. Large ones are whole pages in a range of addresses that is reserved once, so that what is freed has neighbours to
// be joined with, serves requests of other sizes, and can go back to the system page by page. Free pages are kept for reuse, as fresh
// ones are faulted in one by one (a step that does so took 1.5 times longer), but never more than makes all blocks, in use and free, one part in 64 more
// than blocks in use have taken at most since the last trim.
//
// To leave this to malloc is tempting, but its heap shrinks from the top only, and once a large block was freed it maps none of that size or below any more. A process
// whose account peaked at 699 MiB took 1,485 MiB so.
//
// Safe for concurrent use.
class Arena {
 public:
  // A block of at least n bytes, aligned to kAlign; its base is null if the system has none.
  Block get(size_t n);
  void put(const Block& b);
  // Returns free pages to the system until all blocks take at most `most` bytes, or none is free.
  void trim(size_t most);
  // What free pages take of the system, and all blocks.
  void count(int64_t* free, int64_t* all);

 private:
  bool reserve();
  void* map(size_t bytes);
  void shrink(size_t most);

  std::mutex mutex_;
  size_t used_ = 0;  // what blocks in use take
  size_t most_ = 0;  // the highest used_ since the last trim
  bool reserved_ = false, tried_ = false;
  Spans free_;
};

}  // namespace ps
