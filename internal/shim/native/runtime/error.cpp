#include "../internal.hpp"

#include <ATen/Version.h>

#include <cstdlib>
#include <cstring>
#include <dlfcn.h>

namespace ps {

thread_local Failure failure;

ps_error* make_error(int32_t kind, const char* message) {
  auto* e = static_cast<ps_error*>(calloc(1, sizeof(ps_error)));
  e->kind = kind;
  e->message = strdup(message);
  return e;
}

ps_error* caught(const char* message) {
  const bool refused = !failure.message.empty() && strstr(message, failure.message.c_str()) != nullptr;
  auto* e = make_error(refused ? PS_OUT_OF_MEMORY : PS_FAILED, message);
  e->account = failure.account;
  e->limit = failure.limit;
  e->live = failure.live;
  e->requested = failure.requested;
  failure.message.clear();
  return e;
}

ps_error* caught(const RecomputationFailed& thrown) {
  auto* e = make_error(PS_FAILED, thrown.what());
  e->checkpoint = thrown.checkpoint;
  return e;
}

}  // namespace ps

void ps_error_free(ps_error* e) {
  if (e == nullptr) return;
  free(e->message);
  free(e->node);
  free(e->op);
  free(e);
}

const char* ps_version(void) { return TORCH_VERSION; }

const char* ps_library(void) {
  Dl_info info;
  return dladdr(reinterpret_cast<void*>(&at::show_config), &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}
