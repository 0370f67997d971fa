// The rate of fused multiply-adds that one core can reach: what a GEMM is measured against.
#include "../shim.h"

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;

// Twelve independent chains hide the latency of two units; the loop does nothing but multiply-adds on registers.
#define PS_CHAINS(V, SET, FMA)                                                                                        \
  V b = SET(0.999f), c = SET(0.001f), a0 = b, a1 = b, a2 = b, a3 = b, a4 = b, a5 = b, a6 = b, a7 = b, a8 = b, a9 = b, \
    aa = b, ab = b;                                                                                                   \
  for (long k = 0; k < n; k++) {                                                                                      \
    a0 = FMA(a0, b, c), a1 = FMA(a1, b, c), a2 = FMA(a2, b, c), a3 = FMA(a3, b, c);                                   \
    a4 = FMA(a4, b, c), a5 = FMA(a5, b, c), a6 = FMA(a6, b, c), a7 = FMA(a7, b, c);                                   \
    a8 = FMA(a8, b, c), a9 = FMA(a9, b, c), aa = FMA(aa, b, c), ab = FMA(ab, b, c);                                   \
    asm volatile("" : "+v"(a0), "+v"(a1), "+v"(a2), "+v"(a3), "+v"(a4), "+v"(a5));                                    \
    asm volatile("" : "+v"(a6), "+v"(a7), "+v"(a8), "+v"(a9), "+v"(aa), "+v"(ab));                                    \
  }

constexpr int chains = 12;

#if defined(__x86_64__)
__attribute__((target("avx512f"))) void chains512(long n) { PS_CHAINS(__m512, _mm512_set1_ps, _mm512_fmadd_ps) }
__attribute__((target("avx2,fma"))) void chains256(long n) { PS_CHAINS(__m256, _mm256_set1_ps, _mm256_fmadd_ps) }
#endif

}  // namespace

double ps_fma_peak(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  void (*run)(long) = nullptr;
  double lanes = 0;
  if (__builtin_cpu_supports("avx512f")) run = chains512, lanes = 16;
  else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) run = chains256, lanes = 8;
  if (run == nullptr) return 0;
  double best = 0;
  for (int trial = 0; trial < 8; trial++) {
    const long n = 5000000;
    const auto start = Clock::now();
    run(n);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    const double rate = static_cast<double>(n) * chains * lanes * 2 / seconds;
    if (rate > best) best = rate;
  }
  return best;
#else
  return 0;
#endif
}
