#include "streamed.hpp"

#include <immintrin.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#define PS_AVX512 __attribute__((target("avx512f,prfchw")))

namespace ps::streamed {
namespace {

constexpr int64_t lanes = 16;                                // floats of a vector, and of a cache line
constexpr int tall = 8, wide = 3;                            // a tile of C: rows, and vectors of columns
constexpr int64_t strip = tall, panel = wide * lanes;        // columns of a copy of A^T, of a copy of B
constexpr int64_t depth = 1024, shallow = 64;                // terms that are summed before they are added to C
constexpr int64_t block = (depth + panel + strip) * few_rows;  // floats for the copies of operands

int64_t ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

__mmask16 first(int64_t columns) { return static_cast<__mmask16>(columns >= lanes ? 0xffff : (1 << columns) - 1); }

// Memory of the thread for copies of operands, `block` floats.
float* copies() {
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  thread_local std::unique_ptr<float, Free> memory;
  if (memory == nullptr) memory.reset(static_cast<float*>(std::aligned_alloc(64, block * sizeof(float))));
  if (memory == nullptr) throw std::bad_alloc();
  return memory.get();
}

// to [k, width] = from^T, of from [rows, k] with rows <= width; the columns beyond are 0.
void transpose(int64_t rows, int64_t k, const float* from, int64_t ld, float* to, int64_t width) {
  int64_t i = 0;
  for (; i + 4 <= rows; i += 4, from += 4 * ld) {
    int64_t p = 0;
    for (; p + 4 <= k; p += 4) {
      __m128 a = _mm_loadu_ps(from + p), b = _mm_loadu_ps(from + ld + p), c = _mm_loadu_ps(from + 2 * ld + p), d = _mm_loadu_ps(from + 3 * ld + p);
      _MM_TRANSPOSE4_PS(a, b, c, d);
      float* at = to + p * width + i;
      _mm_storeu_ps(at, a), _mm_storeu_ps(at + width, b), _mm_storeu_ps(at + 2 * width, c), _mm_storeu_ps(at + 3 * width, d);
    }
    for (; p < k; p++)
      for (int64_t r = 0; r < 4; r++) to[p * width + i + r] = from[r * ld + p];
  }
  for (; i < width; i++, from += ld)
    for (int64_t p = 0; p < k; p++) to[p * width + i] = i < rows ? from[p] : 0;
}

// to [k, panel] = from [k, columns], of up to `panel` columns; the columns beyond are 0.
PS_AVX512 void copy_panel(int64_t k, int64_t columns, const float* from, int64_t ld, float* to) {
  for (int64_t p = 0; p < k; p++, from += ld, to += panel)
    for (int64_t j = 0; j < panel; j += lanes) _mm512_store_ps(to + j, _mm512_maskz_loadu_ps(columns > j ? first(columns - j) : 0, from + j));
}

// to [k, strip] = from [k, columns], of up to `strip` columns; the columns beyond are 0.
void copy_strip(int64_t k, int64_t columns, const float* from, int64_t ld, float* to) {
  for (int64_t p = 0; p < k; p++, from += ld, to += strip)
    if (columns >= strip) std::memcpy(to, from, strip * sizeof(float));
    else for (int64_t i = 0; i < strip; i++) to[i] = i < columns ? from[i] : 0;
}

// The cache lines of rows that are needed next, in the order in which they are best prefetched: those of eight rows by turns. In each row the hardware then fetches further lines,
// and the lines do not wait for each other. Row by row, the core's few buffers for lines on their way are full.
class Ahead {
 public:
  Ahead(const float* from, int64_t ld, int64_t rows, int64_t columns) : at_(from), ld_(ld), columns_(columns), left_(rows / by * by * ceil(columns, lanes)) {}

  PS_AVX512 inline __attribute__((always_inline)) void prefetch() {
    if (left_ <= 0) return;
    left_--;
    const float* line = at_ + row_ * ld_;
    __builtin_prefetch(line, 0, 2);
    if (++row_ < by) return;
    row_ = 0, at_ += lanes, column_ += lanes;
    if (column_ >= columns_) at_ += by * ld_ - column_, column_ = 0;
  }

 private:
  static constexpr int64_t by = 8;

  const float* at_;
  int64_t ld_, columns_, left_, row_ = 0, column_ = 0;
};

// A tile of C = A B: at most `tall` rows, and V vectors of columns, the last with the columns of the mask.
struct Tile {
  int64_t k;
  const float* a;  // [k, strip]
  const float* b;  // [k, columns]
  int64_t ldb;
  float* copy;  // [k, panel]: where B is copied to on the way
  float* c;
  int64_t ldc, rows;
  __mmask16 last;
  bool adds;
  int64_t lines;  // to prefetch with each term
};

template <int V, bool copies, bool whole>
PS_AVX512 void tile(const Tile& t, Ahead& next) {
  __m512 sums[tall][V];
#pragma GCC unroll 8
  for (int r = 0; r < tall; r++)
#pragma GCC unroll 3
    for (int v = 0; v < V; v++) {
      sums[r][v] = _mm512_setzero_ps();
      if (whole || r < t.rows) __builtin_prefetch(t.c + r * t.ldc + v * lanes, 1);
    }
  const float *a = t.a, *b = t.b;
  float* copy = t.copy;
  Ahead ahead = next;  // in registers
  for (int64_t p = 0; p < t.k; p++, a += strip, b += t.ldb, copy += panel) {
    for (int64_t i = 0; i < t.lines; i++) ahead.prefetch();
    __m512 row[V];
#pragma GCC unroll 3
    for (int v = 0; v < V; v++) {
      row[v] = !copies || v + 1 < V ? _mm512_loadu_ps(b + v * lanes) : _mm512_maskz_loadu_ps(t.last, b + v * lanes);
      if (copies) _mm512_store_ps(copy + v * lanes, row[v]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < tall; r++)
#pragma GCC unroll 3
      for (int v = 0; v < V; v++) sums[r][v] = _mm512_fmadd_ps(_mm512_set1_ps(a[r]), row[v], sums[r][v]);
  }
  next = ahead;
#pragma GCC unroll 8
  for (int r = 0; r < tall; r++)
#pragma GCC unroll 3
    for (int v = 0; v < V; v++)
      if (whole || r < t.rows) {
        const __mmask16 mask = v + 1 < V ? 0xffff : t.last;
        float* to = t.c + r * t.ldc + v * lanes;
        _mm512_mask_storeu_ps(to, mask, t.adds ? _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to), sums[r][v]) : sums[r][v]);
      }
}

template <bool copies>
void tile_of(int64_t columns, Tile& t, Ahead& next) {
  const int64_t vectors = ceil(columns, lanes);
  t.last = first(columns - (vectors - 1) * lanes);
  if (t.rows == tall) (vectors == 1 ? tile<1, copies, true> : vectors == 2 ? tile<2, copies, true> : tile<3, copies, true>)(t, next);
  else (vectors == 1 ? tile<1, copies, false> : vectors == 2 ? tile<2, copies, false> : tile<3, copies, false>)(t, next);
}

// N columns of C = A B^T, of up to V * lanes rows: a is A^T [k, V * lanes], and b has N rows. next is where the next N rows are, or null.
template <int V, int N>
PS_AVX512 void columns(int64_t rows, int64_t k, const float* a, const float* b, int64_t ldb, const float* next, bool adds, float* c, int64_t ldc) {
  __m512 sums[N][V];
#pragma GCC unroll 16
  for (int j = 0; j < N; j++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) sums[j][v] = _mm512_setzero_ps();
  for (int64_t from = 0; from < k; from += lanes) {
    if (next != nullptr)
#pragma GCC unroll 16
      for (int j = 0; j < N; j++) __builtin_prefetch(next + j * ldb + from, 0, 2);
    const int64_t to = std::min(k, from + lanes);
    for (int64_t p = from; p < to; p++, a += V * lanes) {
      __m512 column[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) column[v] = _mm512_load_ps(a + v * lanes);
#pragma GCC unroll 16
      for (int j = 0; j < N; j++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) sums[j][v] = _mm512_fmadd_ps(_mm512_set1_ps(b[j * ldb + p]), column[v], sums[j][v]);
    }
  }
  alignas(64) float by_columns[N][V * lanes];
#pragma GCC unroll 16
  for (int j = 0; j < N; j++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) _mm512_store_ps(&by_columns[j][v * lanes], sums[j][v]);
  for (int64_t r = 0; r < rows; r++, c += ldc)
    for (int j = 0; j < N; j++) c[j] = adds ? c[j] + by_columns[j][r] : by_columns[j][r];
}

template <int V, int N>
void all_columns(int64_t rows, int64_t n, int64_t k, const float* a, const float* b, int64_t ldb, bool adds, float* c, int64_t ldc) {
  int64_t j = 0;
  for (; j + N <= n; j += N) columns<V, N>(rows, k, a, b + j * ldb, ldb, j + 2 * N <= n ? b + (j + N) * ldb : nullptr, adds, c + j, ldc);
  for (; j + 4 <= n; j += 4) columns<V, 4>(rows, k, a, b + j * ldb, ldb, nullptr, adds, c + j, ldc);
  for (; j < n; j++) columns<V, 1>(rows, k, a, b + j * ldb, ldb, nullptr, adds, c + j, ldc);
}

}  // namespace

void by_transposed(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb, bool adds, float* c, int64_t ldc) {
  static constexpr decltype(&all_columns<1, 16>) by_vectors[] = {all_columns<1, 16>, all_columns<2, 8>, all_columns<3, 8>, all_columns<4, 6>};
  float* const transposed = copies();
  const int64_t step = ceil(ceil(m, ceil(m, few_rows)), lanes) * lanes;
  for (int64_t i = 0; i < m; i += step)
    for (int64_t p = 0; p < k; p += depth) {
      const int64_t rows = std::min(step, m - i), vectors = ceil(rows, lanes), terms = std::min(depth, k - p);
      transpose(rows, terms, a + i * lda + p, lda, transposed, vectors * lanes);
      by_vectors[vectors - 1](rows, n, terms, transposed, b + p, ldb, adds || p > 0, c + i * ldc, ldc);
    }
}

void plain(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc) {
  float *const copied = copies(), *const transposed = copied + shallow * panel;
  for (int64_t p = 0, terms; p < k; p += terms) {
    terms = std::min(shallow, k - p);
    for (int64_t i = 0; i < m; i += strip) transpose(std::min(strip, m - i), terms, a + i * lda + p, lda, transposed + i * shallow, strip);
    Ahead next(b + (p + terms) * ldb, ldb, std::min(shallow, k - p - terms), n);
    for (int64_t j = 0; j < n; j += panel)
      for (int64_t i = 0; i < m; i += strip) {
        Tile t{terms, transposed + i * shallow, copied, panel, copied, c + i * ldc + j, ldc, std::min(strip, m - i), 0, p > 0, ceil(wide, ceil(m, strip))};
        if (i > 0) tile_of<false>(std::min(panel, n - j), t, next);
        else t.b = b + p * ldb + j, t.ldb = ldb, tile_of<true>(std::min(panel, n - j), t, next);
      }
  }
}

void transposed_by(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb, bool adds, float* c, int64_t ldc) {
  const int64_t most = (block / k - strip) / panel * panel, step = ceil(ceil(n, ceil(n, most)), panel) * panel;
  float *const right = copies(), *const left = right + step * k;
  for (int64_t from = 0; from < n; from += step) {
    const int64_t columns = std::min(step, n - from);
    for (int64_t j = 0; j < columns; j += panel) copy_panel(k, columns - j, b + from + j, ldb, right + j * k);
    for (int64_t i = 0; i < m; i += strip) {
      copy_strip(k, m - i, a + i, lda, left);
      float* const to = c + i * ldc + from;
      Ahead none(nullptr, 0, 0, 0);
      for (int64_t j = 0; j < columns; j += panel) {
        Tile t{k, left, right + j * k, panel, nullptr, to + j, ldc, std::min(strip, m - i), 0, adds, 0};
        tile_of<false>(std::min(panel, columns - j), t, none);
      }
    }
  }
}

}  // namespace ps::streamed
