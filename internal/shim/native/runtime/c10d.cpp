// c10d: the store of the rendezvous, sends and receives over Gloo.
#include "../c10d.h"
#include "../internal.hpp"

#define USE_C10D_GLOO  // else the header is empty
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <mutex>
#include <thread>

namespace {

using std::chrono::milliseconds;

// RendezvousStore asks another store again and again where that one would wait, so that a wait can be interrupted and its end leaves the connection in
// order. After close it has none: Gloo keeps its store for ever, and libtorch 1.13 ends the process if the connection of a TCPStore is reset. It does not
// say override where libtorch 1.13 and 2.x differ in what a store has.
class RendezvousStore final : public c10d::Store {
 public:
  RendezvousStore(c10::intrusive_ptr<c10d::Store> inner, milliseconds timeout) : c10d::Store(timeout), inner_(std::move(inner)) {}

  void set(const std::string& key, const std::vector<uint8_t>& value) override { inner()->set(key, value); }
  std::vector<uint8_t> get(const std::string& key) override {
    wait({key}, timeout_);
    return inner()->get(key);
  }
  int64_t add(const std::string& key, int64_t n) override { return inner()->add(key, n); }
  bool deleteKey(const std::string& key) override { return inner()->deleteKey(key); }
  bool check(const std::vector<std::string>& keys) override { return inner()->check(keys); }
  int64_t getNumKeys() override { return inner()->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    const auto end = std::chrono::steady_clock::now() + timeout;
    auto pause = milliseconds(1);
    while (!check(keys)) {
      if (interrupted_) throw std::runtime_error("the rendezvous was interrupted");
      if (std::chrono::steady_clock::now() >= end) throw std::runtime_error("nobody has set " + keys[0] + " in the store");
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, milliseconds(50));
    }
  }
  c10::intrusive_ptr<c10d::Store> clone() { return c10::intrusive_ptr<RendezvousStore>::reclaim_copy(this); }

  void interrupt() { interrupted_ = true; }
  void close() {
    interrupt();
    c10::intrusive_ptr<c10d::Store> last;  // closed without the lock
    std::lock_guard<std::mutex> lock(mutex_);
    last.swap(inner_);
  }

 private:
  c10::intrusive_ptr<c10d::Store> inner() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!inner_) throw std::runtime_error("the store was closed");
    return inner_;
  }

  std::mutex mutex_;
  c10::intrusive_ptr<c10d::Store> inner_;
  std::atomic<bool> interrupted_{false};
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

RendezvousStore& store_of(ps_store s) { return *reinterpret_cast<RendezvousStore*>(s); }

using StorePointer = c10::intrusive_ptr<c10d::TCPStore>;

// A TCPStore, or an error after options.timeout. libtorch 2 waits for the first answer as long as the connection lasts, on a thread that is given up here: it ends when the other side closes.
StorePointer open(const std::string& host, const c10d::TCPStoreOptions& options) {
  std::packaged_task<StorePointer()> task([=] { return c10::make_intrusive<c10d::TCPStore>(host, options); });
  std::future<StorePointer> opened = task.get_future();
  std::thread(std::move(task)).detach();
  if (opened.wait_for(options.timeout) != std::future_status::ready) throw std::runtime_error("no answer of a store");
  return opened.get();
}

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

ps_error* ps_store_open(const char* host, int32_t port, int32_t server, int64_t timeout_ms, ps_store* out) {
  return ps::guarded([&] {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(port);
    options.isServer = server != 0;
    options.waitWorkers = false;
    options.timeout = milliseconds(timeout_ms);
#if PS_TORCH >= 204
    options.useLibUV = false;  // the default, which Debian's libtorch is built without
#endif
    StorePointer tcp = open(host, options);
    // The first answer: is it a store, and one of this libtorch? A wait alone sets the time that any later answer may take.
    const std::string key = "penstock/hello";
    tcp->set(key, {1});
    tcp->wait({key}, options.timeout);
    *out = handle(c10::make_intrusive<RendezvousStore>(std::move(tcp), options.timeout));
  });
}

ps_error* ps_store_set(ps_store s, const char* key, const void* data, int64_t bytes) {
  return ps::guarded([&] {
    const auto* p = static_cast<const uint8_t*>(data);
    store_of(s).set(key, std::vector<uint8_t>(p, p + bytes));
  });
}

ps_error* ps_store_add(ps_store s, const char* key, int64_t n, int64_t* sum) {
  return ps::guarded([&] { *sum = store_of(s).add(key, n); });
}

ps_error* ps_store_get(ps_store s, const char* key, void** data, int64_t* bytes) {
  *data = nullptr;
  *bytes = 0;
  return ps::guarded([&] {
    if (!store_of(s).check({key})) return;
    const std::vector<uint8_t> value = store_of(s).get(key);
    *data = malloc(value.size() + 1);
    memcpy(*data, value.data(), value.size());
    *bytes = static_cast<int64_t>(value.size());
  });
}

void ps_store_interrupt(ps_store s) { store_of(s).interrupt(); }

void ps_store_close(ps_store s) {
  store_of(s).close();
  drop<RendezvousStore>(s);
}

namespace {

c10d::ProcessGroupGloo& gloo_of(ps_gloo g) { return *reinterpret_cast<c10d::ProcessGroupGloo*>(g); }

c10d::Work& transfer_of(ps_transfer t) { return *reinterpret_cast<c10d::Work*>(t); }

}  // namespace

ps_error* ps_gloo_open(ps_store s, const char* prefix, int32_t rank, int32_t size, const char* address, int64_t timeout_ms, ps_gloo* out) {
  return ps::guarded([&] {
    auto options = c10d::ProcessGroupGloo::Options::create(milliseconds(timeout_ms));
    options->threads = 1;  // they are for collectives
    options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(address)};
    const auto store = c10::intrusive_ptr<c10d::Store>::reclaim_copy(&store_of(s));
    *out = handle(c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>(prefix, store), rank, size, std::move(options)));
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
