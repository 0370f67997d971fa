#include "spans.hpp"

#include <algorithm>

namespace ps {
namespace {

// Bytes of a run of neighbours that are not mapped, up to addresses that come in ascending order.
class Fresh {
 public:
  explicit Fresh(const Span* first) : span_(first) {}

  size_t up_to(uintptr_t at) {
    for (; at > span_->end(); ++span_) before_ += of(*span_);
    return span_->mapped ? before_ : before_ + (at - span_->at);
  }

  static size_t of(const Span& s) { return s.mapped ? 0 : s.bytes; }

 private:
  const Span* span_;
  size_t before_ = 0;  // of the spans in front of span_
};

}  // namespace

std::vector<Span>::iterator Spans::from(uintptr_t at) {
  return std::lower_bound(by_address_.begin(), by_address_.end(), at, [](const Span& s, uintptr_t a) { return s.at < a; });
}

void Spans::add(Span s) {
  if (s.bytes == 0) return;
  if (s.mapped) mapped_ += s.bytes;
  auto next = from(s.at);
  const bool joins_next = next != by_address_.end() && next->at == s.end() && next->mapped == s.mapped;
  if (next != by_address_.begin()) {
    Span& before = *(next - 1);
    if (before.end() == s.at && before.mapped == s.mapped) {
      before.bytes += s.bytes;
      if (!joins_next) return;
      before.bytes += next->bytes;
      by_address_.erase(next);
      return;
    }
  }
  if (joins_next) {
    *next = {s.at, s.bytes + next->bytes, s.mapped};
    return;
  }
  by_address_.insert(next, s);
}

// A run of neighbours a, b, c is tried at the beginning and at the end of each:   |aaa|bb|ccccc|
uintptr_t Spans::place(size_t bytes) const {
  uintptr_t best = 0;
  size_t least_fresh = SIZE_MAX, least_left = SIZE_MAX;
  const Span* const all_end = by_address_.data() + by_address_.size();
  for (const Span* first = by_address_.data(); first != all_end;) {
    const Span* last = first + 1;
    while (last != all_end && last->at == (last - 1)->end()) ++last;
    const uintptr_t begin = first->at, end = (last - 1)->end();
    const size_t left = end - begin - bytes;
    const auto consider = [&](uintptr_t at, size_t fresh) {
      if (fresh > least_fresh || (fresh == least_fresh && left >= least_left)) return;
      best = at;
      least_fresh = fresh;
      least_left = left;
    };
    if (end - begin >= bytes) {
      Fresh head(first), tail(first);  // what lies in front of the ends, and of the beginnings, of places
      size_t before = 0;
      for (const Span* s = first; s != last; ++s) {
        if (end - s->at >= bytes) consider(s->at, head.up_to(s->at + bytes) - before);
        before += Fresh::of(*s);
        if (s->end() - begin >= bytes) consider(s->end() - bytes, before - tail.up_to(s->end() - bytes));
      }
    }
    first = last;
  }
  return best;
}

std::vector<Span> Spans::take(uintptr_t at, size_t bytes) {
  const uintptr_t end = at + bytes;
  std::vector<Span> fresh, outside;
  auto first = from(at);
  if (first == by_address_.end() || first->at > at) --first;
  auto last = first;
  for (; last != by_address_.end() && last->at < end; ++last) {
    const Span& s = *last;
    if (s.mapped) mapped_ -= s.bytes;
    const uintptr_t from = std::max(at, s.at), to = std::min(end, s.end());
    if (!s.mapped) fresh.push_back({from, to - from, false});
    if (s.at < from) outside.push_back({s.at, from - s.at, s.mapped});
    if (to < s.end()) outside.push_back({to, s.end() - to, s.mapped});
  }
  by_address_.erase(first, last);
  for (const Span& s : outside) add(s);
  return fresh;
}

Span Spans::take_smallest(size_t most) {
  auto smallest = by_address_.end();
  for (auto i = by_address_.begin(); i != by_address_.end(); ++i)
    if (i->mapped && (smallest == by_address_.end() || i->bytes < smallest->bytes)) smallest = i;
  Span& s = *smallest;
  const Span taken{s.end() - std::min(most, s.bytes), std::min(most, s.bytes), true};
  s.bytes -= taken.bytes;
  mapped_ -= taken.bytes;
  if (s.bytes == 0) by_address_.erase(smallest);
  return taken;
}

}  // namespace ps
