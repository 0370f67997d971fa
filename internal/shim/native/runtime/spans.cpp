#include "spans.hpp"

#include <algorithm>
#include <iterator>

namespace ps {

void Spans::add(Span s) {
  if (s.bytes == 0) return;
  if (s.mapped) mapped_ += s.bytes;
  auto next = by_address_.lower_bound(s.at);
  if (next != by_address_.begin()) {
    const auto before = std::prev(next);
    if (before->second.end() == s.at && before->second.mapped == s.mapped) {
      s = {before->first, before->second.bytes + s.bytes, s.mapped};
      by_address_.erase(before);
    }
  }
  if (next != by_address_.end() && next->first == s.end() && next->second.mapped == s.mapped) {
    s.bytes += next->second.bytes;
    by_address_.erase(next);
  }
  by_address_[s.at] = s;
}

// A run of neighbours a, b, c is tried at the beginning and at the end of each:   |aaa|bb|ccccc|
uintptr_t Spans::place(size_t bytes) const {
  uintptr_t best = 0;
  size_t least_fresh = SIZE_MAX, least_left = SIZE_MAX;
  for (auto first = by_address_.begin(); first != by_address_.end();) {
    auto last = first;
    uintptr_t end = first->first;
    for (; last != by_address_.end() && last->first == end; ++last) end = last->second.end();
    const uintptr_t begin = first->first;
    const size_t left = end - begin - bytes;
    const auto consider = [&](uintptr_t at) {
      size_t fresh = 0;
      for (auto i = first; i != last; ++i) {
        const uintptr_t from = std::max(at, i->first), to = std::min(at + bytes, i->second.end());
        if (!i->second.mapped && from < to) fresh += to - from;
      }
      if (fresh > least_fresh || (fresh == least_fresh && left >= least_left)) return;
      best = at;
      least_fresh = fresh;
      least_left = left;
    };
    if (end - begin >= bytes) {
      for (auto i = first; i != last; ++i) {
        if (end - i->first >= bytes) consider(i->first);
        if (i->second.end() - begin >= bytes) consider(i->second.end() - bytes);
      }
    }
    first = last;
  }
  return best;
}

std::vector<Span> Spans::take(uintptr_t at, size_t bytes) {
  const uintptr_t end = at + bytes;
  std::vector<Span> fresh, outside;
  auto i = std::prev(by_address_.upper_bound(at));
  while (i != by_address_.end() && i->first < end) {
    const Span s = i->second;
    i = by_address_.erase(i);
    if (s.mapped) mapped_ -= s.bytes;
    const uintptr_t from = std::max(at, s.at), to = std::min(end, s.end());
    if (!s.mapped) fresh.push_back({from, to - from, false});
    if (s.at < from) outside.push_back({s.at, from - s.at, s.mapped});
    if (to < s.end()) outside.push_back({to, s.end() - to, s.mapped});
  }
  for (const Span& s : outside) add(s);
  return fresh;
}

Span Spans::take_smallest(size_t most) {
  auto smallest = by_address_.end();
  for (auto i = by_address_.begin(); i != by_address_.end(); ++i)
    if (i->second.mapped && (smallest == by_address_.end() || i->second.bytes < smallest->second.bytes)) smallest = i;
  Span& s = smallest->second;
  const Span taken{s.end() - std::min(most, s.bytes), std::min(most, s.bytes), true};
  s.bytes -= taken.bytes;
  mapped_ -= taken.bytes;
  if (s.bytes == 0) by_address_.erase(smallest);
  return taken;
}

}  // namespace ps
