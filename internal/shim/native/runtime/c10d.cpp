// c10d: sends and receives over Gloo, and the board on which Gloo's processes find each other.
#include "../c10d.h"
#include "../internal.hpp"

#define USE_C10D_GLOO  // else the header is empty
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

namespace {

using std::chrono::milliseconds;
using Bytes = std::vector<uint8_t>;

// Board is a store whose entries the caller carries from process to process. It does not say override where
// libtorch 1.13 and 2.x differ in what a store has.
class Board final : public c10d::Store {
 public:
  // An entry that this process has set.
  void set(const std::string& key, const Bytes& value) override {
    std::lock_guard<std::mutex> lock(mutex_);
    made_.emplace_back(key, value);
    entries_[key] = value;
    changed_.notify_all();
  }
  // An entry of another process.
  void put(const std::string& key, Bytes value) {
    std::lock_guard<std::mutex> lock(mutex_);
    entries_[key] = std::move(value);
    changed_.notify_all();
  }
  // The next entry that this process has set. It waits for one, and returns false after close.
  bool take(std::pair<std::string, Bytes>& out) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return closed_ || !made_.empty(); });
    if (closed_) return false;
    out = std::move(made_.front());
    made_.pop_front();
    return true;
  }
  // Ends all waits.
  void close() {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    entries_.clear();
    made_.clear();
    changed_.notify_all();
  }

  Bytes get(const std::string& key) override {
    wait({key}, timeout_);
    std::lock_guard<std::mutex> lock(mutex_);
    return entries_[key];
  }
  bool check(const std::vector<std::string>& keys) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return has(keys);
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return closed_ || has(keys); })) {
      throw std::runtime_error("no process has set " + keys[0]);
    }
    if (closed_) throw std::runtime_error("the board was closed");
  }
  int64_t add(const std::string&, int64_t) override { return unused(); }
  bool deleteKey(const std::string&) override { return unused(); }
  int64_t getNumKeys() override { return unused(); }
  c10::intrusive_ptr<c10d::Store> clone() { return c10::intrusive_ptr<Board>::reclaim_copy(this); }

 private:
  static int64_t unused() { throw std::runtime_error("Gloo asks for what the board does not have"); }
  bool has(const std::vector<std::string>& keys) const {
    for (const auto& key : keys) {
      if (entries_.count(key) == 0) return false;
    }
    return true;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Bytes> entries_;
  std::deque<std::pair<std::string, Bytes>> made_;  // and not taken
  bool closed_ = false;
};

// A reference as a handle, and back.
template <class T>
uintptr_t handle(c10::intrusive_ptr<T> p) {
  return reinterpret_cast<uintptr_t>(p.release());
}
template <class T>
void drop(uintptr_t h) {
  c10::intrusive_ptr<T>::reclaim(reinterpret_cast<T*>(h));
}

Board& board_of(ps_board b) { return *reinterpret_cast<Board*>(b); }

// The memory of a dense tensor, in the order of addresses. Gloo takes contiguous tensors only.
at::Tensor memory(ps_tensor handle) {
  c10::AutoGradMode no_graph(false);
  const at::Tensor t = ps::borrow(handle).detach();
  TORCH_CHECK(t.is_non_overlapping_and_dense(), "the tensor is not dense: its sizes are ", t.sizes(), " and its strides ", t.strides());
  return t.as_strided({t.numel()}, {1});
}

}  // namespace

ps_error* ps_memory(ps_tensor t, ps_tensor* out) {
  return ps::guarded([&] { *out = ps::give(memory(t)); });
}

ps_board ps_board_new(void) { return handle(c10::make_intrusive<Board>()); }

int32_t ps_board_take(ps_board b, char** key, void** value, int64_t* bytes) {
  std::pair<std::string, Bytes> entry;
  if (!board_of(b).take(entry)) return 0;
  *key = strdup(entry.first.c_str());
  *bytes = static_cast<int64_t>(entry.second.size());
  *value = malloc(entry.second.size() + 1);
  memcpy(*value, entry.second.data(), entry.second.size());
  return 1;
}

void ps_board_put(ps_board b, const char* key, const void* value, int64_t bytes) {
  const auto* p = static_cast<const uint8_t*>(value);
  board_of(b).put(key, Bytes(p, p + bytes));
}

void ps_board_close(ps_board b) { board_of(b).close(); }

namespace {

c10d::ProcessGroupGloo& gloo_of(ps_gloo g) { return *reinterpret_cast<c10d::ProcessGroupGloo*>(g); }

c10d::Work& transfer_of(ps_transfer t) { return *reinterpret_cast<c10d::Work*>(t); }

}  // namespace

ps_error* ps_gloo_open(ps_board b, int32_t rank, int32_t size, const char* address, int64_t timeout_ms, ps_gloo* out) {
  return ps::guarded([&] {
    auto options = c10d::ProcessGroupGloo::Options::create(milliseconds(timeout_ms));
    options->threads = 1;  // they are for collectives
    options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(address)};
    const auto board = c10::intrusive_ptr<Board>::reclaim_copy(&board_of(b));
    board->setTimeout(milliseconds(timeout_ms));
    *out = handle(c10::make_intrusive<c10d::ProcessGroupGloo>(board, rank, size, std::move(options)));
  });
}

void ps_gloo_close(ps_gloo g) { drop<c10d::ProcessGroupGloo>(g); }

ps_error* ps_gloo_send(ps_gloo g, ps_tensor t, int32_t to, int32_t tag, ps_transfer* out) {
  return ps::guarded([&] {
    std::vector<at::Tensor> tensors{memory(t)};
    *out = handle(gloo_of(g).send(tensors, to, tag));
  });
}

ps_error* ps_gloo_receive(ps_gloo g, ps_tensor t, int32_t from, int32_t tag, ps_transfer* out) {
  return ps::guarded([&] {
    std::vector<at::Tensor> tensors{memory(t)};
    *out = handle(gloo_of(g).recv(tensors, from, tag));
  });
}

ps_error* ps_transfer_wait(ps_transfer t, int32_t* done) {
  // Gloo closes the connection of a wait that takes too long. A year is not too long.
  return ps::guarded([&] { *done = transfer_of(t).wait(std::chrono::hours(24 * 365)) ? 1 : 0; });
}

void ps_transfer_abort(ps_transfer t) { transfer_of(t).abort(); }

void ps_transfer_free(ps_transfer t) { drop<c10d::Work>(t); }
