// Free ranges of addresses, and where to place what is asked for. Numbers only: nothing here touches memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ps {

// A range of free addresses. The system holds memory for all of a mapped one, and for nothing of another.
struct Span {
  uintptr_t at = 0;
  size_t bytes = 0;
  bool mapped = false;
  uintptr_t end() const { return at + bytes; }
};

// Spans are free ranges in the order of addresses. Neighbours of one kind are one span. Sizes are whole pages. Not safe for concurrent use.
class Spans {
 public:
  size_t mapped() const { return mapped_; }  // bytes of mapped spans

  void add(Span s);

  // Where `bytes` are to be placed: where the fewest of them are not mapped, and of such places in the run of spans that is hardly larger. 0 if there is none.
  uintptr_t place(size_t bytes) const;

  // Takes a range out, all of which is free, and returns the parts of it that are not mapped.
  std::vector<Span> take(uintptr_t at, size_t bytes);

  // Takes out at most `most` bytes, more than 0, of the smallest mapped span: large ones are what is asked for again. There must be one.
  Span take_smallest(size_t most);

 private:
  std::vector<Span>::iterator from(uintptr_t at);  // the first span that begins there or later

  // A placement walks over all of them: some hundred in a training of many sizes, and a walk over a tree's nodes takes several times as long.
  std::vector<Span> by_address_;
  size_t mapped_ = 0;
};

}  // namespace ps
