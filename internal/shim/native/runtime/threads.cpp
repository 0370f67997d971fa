// Intra-op threads, core sets, and the choice of BLAS kernels.
//
// Each OS thread that calls libtorch has a number of its own of OpenMP's threads, which libtorch's operators use. OpenBLAS, found by name because a
// libtorch may be linked with another BLAS, has threads of its own, for the whole process: they are not used (gemm.cpp).
#include "../internal.hpp"

#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <initializer_list>
#include <pthread.h>
#include <sched.h>
#include <string>

namespace ps {
namespace {

template <class F>
F symbol(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
}

thread_local int32_t thread_count = 0;
thread_local int64_t thread_tag = 0;

// Bits of the vectors that the processor's multiply-adds work on: 512, 256, or 0 for less than that.
int vector_bits() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"))
    return 512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 256;
#endif
  return 0;
}

}  // namespace

void apply_threads(int32_t n) {
  if (thread_count != n) {
    at::get_num_threads();  // runs libtorch's lazy per-thread initialisation, which would overwrite ours later
    at::set_num_threads(n);
    thread_count = n;
  }
}

int32_t applied_threads() { return thread_count; }

}  // namespace ps

ps_error* ps_pin_thread(const int32_t* cpus, int32_t n) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int32_t i = 0; i < n; i++) {
    if (cpus[i] < 0 || cpus[i] >= CPU_SETSIZE) return ps::make_error(PS_BAD_ARGUMENT, ("no such core: " + std::to_string(cpus[i])).c_str());
    CPU_SET(cpus[i], &set);
  }
  const int rc = pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
  if (rc != 0) return ps::make_error(PS_BAD_ARGUMENT, (std::string("cannot use this core set: ") + strerror(rc)).c_str());
  return nullptr;
}

void ps_tag_thread(int64_t tag) { ps::thread_tag = tag; }
int64_t ps_thread_tag(void) { return ps::thread_tag; }

namespace {

const char* openblas_core() {
  auto name = ps::symbol<char* (*)(void)>("openblas_get_corename");
  return name != nullptr ? name() : "";
}

// What follows the key in libtorch's description of itself, up to one of the ends; "" where there is no key.
std::string configured(const std::string& key, const char* ends) {
  const std::string config = at::show_config();
  const size_t at = config.find(key);
  return at == std::string::npos ? "" : config.substr(at + key.size(), config.find_first_of(ends, at + key.size()) - at - key.size());
}

}  // namespace

// MKL's numbers of instruction sets, by which it chooses kernels, are those of mkl_serv_cpu_detect in MKL 2020 to 2024.
const char* ps_blas_core(void) {
  auto mkl = ps::symbol<int (*)(void)>("mkl_serv_cpu_detect");
  if (mkl == nullptr) return openblas_core();
  switch (mkl()) {
    case 4: return "AVX";
    case 5: return "AVX2";
    case 7: return "AVX512";
    default: return "other";
  }
}

const char* ps_blas_version(void) {
  static const std::string name = [] {
    const std::string mkl = configured("Math Kernel Library Version ", "- \n");
    if (!mkl.empty()) return "MKL " + mkl;
    auto config = ps::symbol<char* (*)(void)>("openblas_get_config");
    const std::string openblas = config != nullptr ? config() : "";
    return openblas.substr(0, openblas.find(' ', openblas.find(' ') + 1));
  }();
  return name.c_str();
}

const char* ps_onednn_version(void) {
  static const std::string version = configured("MKL-DNN v", " \n");
  return version.c_str();
}

// OpenBLAS knows processors by model number and falls back to ancient kernels on those made after its release: 0.3.21 takes AVX2 kernels (Zen) on newer
// AVX-512 AMD cores and SSE3 ones (Prescott) on newer Intel cores. What counts is the instruction sets that are there.
const char* ps_blas_better_core(void) {
  const std::string core = openblas_core();
  if (core.empty()) return nullptr;
  const auto best = [&core](std::initializer_list<const char*> good) -> const char* {
    for (const char* name : good)
      if (core == name) return nullptr;
    return *good.begin();
  };
  switch (ps::vector_bits()) {
    case 512: return best({"SkylakeX", "Cooperlake", "SapphireRapids", "Zen4"});
    case 256: return best({"Haswell", "Zen", "Excavator"});
  }
  return nullptr;
}

const char* ps_aten_kernels(void) {
  static const std::string name = configured("CPU capability usage: ", "\n");
  return name.c_str();
}

const char* ps_aten_better_kernels(void) {
  const std::string name = ps_aten_kernels();
  return ps::vector_bits() >= 256 && (name == "NO AVX" || name == "DEFAULT") ? "AVX2" : nullptr;
}

int32_t ps_onednn_isa(void) {
  auto isa = ps::symbol<int (*)(void)>("dnnl_get_effective_cpu_isa");
  return isa != nullptr ? isa() : -1;
}

// A dnnl_cpu_isa_t is a set of bits. Those of AVX2 and of AVX512_CORE are what computing in float32 gains by.
int32_t ps_onednn_better_isa(void) {
  const int32_t isa = ps_onednn_isa(), avx2 = 0x7, avx512 = 0x27;
  const int32_t best = ps::vector_bits() == 512 ? avx512 : ps::vector_bits() == 256 ? avx2 : 0;
  return isa >= 0 && (isa & best) != best ? best : 0;
}

ps_error* ps_blas_use_core(const char* core) {
  auto quit = ps::symbol<void (*)(void)>("gotoblas_dynamic_quit");
  auto init = ps::symbol<void (*)(void)>("gotoblas_dynamic_init");
  if (quit == nullptr || init == nullptr) return ps::make_error(PS_BAD_ARGUMENT, "this BLAS cannot change its kernels");
  setenv("OPENBLAS_CORETYPE", core, 1);
  quit();
  init();
  return nullptr;
}
