// Blocks of an account that wait for another device's worker, who copies and then frees them.
//
// When that happens depends on who is ahead, so what an account holds at most does, too. What it holds beside them does not: it is
// `own`, and with the blocks that may wait at worst it gives the most that the account can hold.
#pragma once
#include <algorithm>
#include <cstdint>
#include <unordered_map>

namespace ps {

// The account's mutex guards all of it.
class Loans {
 public:
  // Of so many live bytes, those that are not lent.
  int64_t beside(int64_t live) const { return live - lent_; }

  // The account took a block, with which so many bytes are live that are not lent.
  void took(int64_t own) { own_ = std::max(own_, own); }

  // The block was freed.
  void freed(void* block) {
    if (loans_.empty()) return;
    auto it = loans_.find(block);
    if (it != loans_.end()) drop(it);
  }

  // The block waits from now on. Returns the number of the loan.
  uint64_t lend(void* block, int64_t bytes) {
    auto [it, fresh] = loans_.try_emplace(block, Loan{count_ + 1, bytes});
    if (fresh) ++count_, lent_ += bytes;
    return it->second.number;
  }

  // The block of that loan waits no more, if it is still there.
  void end(uint64_t number) {
    for (auto it = loans_.begin(); it != loans_.end(); ++it) {
      if (it->second.number == number) return drop(it);
    }
  }

  // The most bytes that were live at a time, lent ones aside, since the last call.
  int64_t own(int64_t live) {
    const int64_t most = own_;
    own_ = beside(live);
    return most;
  }

 private:
  struct Loan { uint64_t number; int64_t bytes; };
  using Map = std::unordered_map<void*, Loan>;

  void drop(Map::iterator it) {
    lent_ -= it->second.bytes;
    loans_.erase(it);
  }

  Map loans_;  // by block
  int64_t lent_ = 0, own_ = 0;
  uint64_t count_ = 0;
};

}  // namespace ps
