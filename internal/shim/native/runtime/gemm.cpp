// Matrix products on libtorch's own threads.
//
// Debian's libtorch has two sets of threads: OpenMP's, which its operators and oneDNN use, and those of OpenBLAS. Each waits by spinning on the cores that the other needs next, so
// that with two of both a product took as long as with one, or several times as long. So OpenBLAS has one thread, and a product that libtorch asks
// for is cut into parts here, for OpenMP's. The sums of an element are in one part. docs/decisions.md has the numbers.
//
// MKL has OpenMP's threads itself, and its bits depend on the thread that calls it from a parallel region: its products stay whole.
#include "gemm.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <dlfcn.h>
#include <exception>
#include <utility>

namespace ps {
namespace {

// Multiply-adds for which another thread is worth waking: some microseconds.
constexpr int64_t part_work = int64_t{1} << 19;

// What reading an element of an operand costs, in multiply-adds: each part copies its operands into blocks.
constexpr int64_t copy_cost = 16;

// Parts end at multiples of it, so that kernels seldom have a remainder.
constexpr int64_t step = 16;

int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How many elements each of so many parts has of a side.
int64_t share(int64_t side, int64_t parts) { return up(up(side, parts), step) * step; }

// What GCC makes of a parallel region, in the OpenMP that libtorch has loaded: at::parallel_for needs a compiler's flag, and that flag an OpenMP, which may be another one.
using Parallel = void (*)(void (*f)(void*), void* data, unsigned threads, unsigned flags);

Parallel parallel() {
  static const auto f = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  return f;
}

// Parts that threads take one by one.
struct Parts {
  c10::function_ref<void(int64_t)> part;
  int64_t count;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr failure;

  static void take(void* of) {
    Parts& p = *static_cast<Parts*>(of);
    for (int64_t i; (i = p.next++) < p.count;) try {
        p.part(i);
      } catch (...) {
        if (!p.failed.exchange(true)) p.failure = std::current_exception();
      }
  }
};

}  // namespace

void in_parts(int64_t m, int64_t n, int64_t k, c10::function_ref<void(int64_t, int64_t, int64_t, int64_t)> do_part) {
  const int64_t most = parallel() == nullptr || at::in_parallel_region() ? 1 : std::min<int64_t>(at::get_num_threads(), m * n * k / part_work);
  int64_t by_m = m, by_n = n, least = 0;
  for (int64_t rows = 1; rows <= most; rows++) {
    const int64_t p = share(m, rows), q = share(n, most / rows), cost = p * q + copy_cost * (p + q);
    if (least == 0 || cost < least) by_m = p, by_n = q, least = cost;
  }
  if (by_m >= m && by_n >= n) return do_part(0, m, 0, n);
  const int64_t across = up(n, by_n);
  const auto part = [&](int64_t i) {
    const int64_t from_m = i / across * by_m, from_n = i % across * by_n;
    do_part(from_m, std::min(from_m + by_m, m), from_n, std::min(from_n + by_n, n));
  };
  Parts parts{part, up(m, by_m) * across};
  parallel()(Parts::take, &parts, static_cast<unsigned>(parts.count), 0);
  if (parts.failed) std::rethrow_exception(parts.failure);
}

namespace {

template <class T>
using Gemm = void (*)(const char* op_a, const char* op_b, const int* m, const int* n, const int* k, const T* alpha, const T* a, const int* lda, const T* b, const int* ldb, const T* beta,
                      T* c, const int* ldc);

// Whether the BLAS is OpenBLAS. It has one thread before anything is computed.
const bool openblas = [] {
  const auto set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads"));
  if (set != nullptr) set(1);
  return set != nullptr;
}();

// C [m, n] = alpha op(A) op(B) + beta C by columns, in parts if the BLAS is OpenBLAS.
template <class T>
void gemm(Gemm<T> whole, const char* op_a, const char* op_b, int m, int n, int k, const T* alpha, const T* a, int lda, const T* b, int ldb, const T* beta, T* c, int ldc) {
  if (!openblas) return whole(op_a, op_b, &m, &n, &k, alpha, a, &lda, b, &ldb, beta, c, &ldc);
  const bool as_is_a = *op_a == 'n' || *op_a == 'N', as_is_b = *op_b == 'n' || *op_b == 'N';
  in_parts(m, n, k, [&](int64_t from_m, int64_t to_m, int64_t from_n, int64_t to_n) {
    const int rows = static_cast<int>(to_m - from_m), columns = static_cast<int>(to_n - from_n);
    whole(op_a, op_b, &rows, &columns, &k, alpha, a + from_m * (as_is_a ? 1 : lda), &lda, b + from_n * (as_is_b ? ldb : 1), &ldb, beta, c + from_m + from_n * ldc, &ldc);
  });
}

// The function of that name that libtorch would call without ours.
template <class F>
F behind(const char* name) {
  F f = reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
  TORCH_CHECK(f != nullptr, "the BLAS has no ", name);
  return f;
}

thread_local int64_t asked = 0;  // how often libtorch has asked this thread for a product of floats

}  // namespace

void blas_product(char op_a, char op_b, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  static const auto whole = behind<Gemm<float>>("sgemm_");
  const float alpha = 1;
  gemm<float>(whole, &op_a, &op_b, m, n, k, &alpha, a, lda, b, ldb, &beta, c, ldc);
}

bool multiplies_for_libtorch() {
  static const bool does = [] {
    const int32_t account = std::exchange(current_account, 0);
    const int64_t before = asked;
    const at::Tensor a = at::ones({2, 2}, at::kFloat);
    at::mm(a, a);
    current_account = account;
    return asked > before;
  }();
  return does;
}

}  // namespace ps

// The products of a BLAS, in Fortran's convention, by the names under which libtorch looks for them in the executable before the BLAS. A libtorch that has its BLAS inside does not.
extern "C" __attribute__((visibility("default"))) void sgemm_(const char* op_a, const char* op_b, const int* m, const int* n, const int* k, const float* alpha, const float* a, const int* lda,
                                                              const float* b, const int* ldb, const float* beta, float* c, const int* ldc) {
  static const auto whole = ps::behind<ps::Gemm<float>>("sgemm_");
  ps::asked++;
  ps::gemm(whole, op_a, op_b, *m, *n, *k, alpha, a, *lda, b, *ldb, beta, c, *ldc);
}

extern "C" __attribute__((visibility("default"))) void dgemm_(const char* op_a, const char* op_b, const int* m, const int* n, const int* k, const double* alpha, const double* a,
                                                              const int* lda, const double* b, const int* ldb, const double* beta, double* c, const int* ldc) {
  static const auto whole = ps::behind<ps::Gemm<double>>("dgemm_");
  ps::gemm(whole, op_a, op_b, *m, *n, *k, alpha, a, *lda, b, *ldb, beta, c, *ldc);
}
