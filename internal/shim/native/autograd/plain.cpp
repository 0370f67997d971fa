#include "plain.hpp"
#include "backward.hpp"

#include <ATen/EmptyTensor.h>

#include <cstring>

namespace ps {
namespace {

// libtorch's at::internal::GRAIN_SIZE: from here on it divides loops among threads.
constexpr int64_t grain = 32768;

// Four floats, and the answers of a comparison: all bits of a true one.
using Four = float __attribute__((vector_size(16)));
using Mask = int32_t __attribute__((vector_size(16)));
constexpr int64_t lanes = 4;

// x where the mask is false, 0 where it is true.
Four unless(Mask mask, Four x) { return reinterpret_cast<Four>(reinterpret_cast<Mask>(x) & ~mask); }

// to = f(a, b) for n elements each, four at a time. to may be a or b.
template <class F>
void each(float* to, const float* a, const float* b, int64_t n, F&& f) {
  const auto some = [&](int64_t at, size_t bytes) {
    Four x{}, y{};
    memcpy(&x, a + at, bytes);
    memcpy(&y, b + at, bytes);
    const Four z = f(x, y);
    memcpy(to + at, &z, bytes);
  };
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) some(i, sizeof(Four));
  if (i < n) some(i, (n - i) * sizeof(float));
}

// Columns of which libtorch's sum, with vectors of any length, adds the rows in the order below. Of fewer it adds every fourth row first.
constexpr int64_t columns = 64;

// The sums of so many columns, of a matrix whose rows are `stride` elements apart: of 16 rows, of 16 such sums, and so on.
void sum_columns(const float* from, int64_t rows, int64_t stride, float* to) {
  constexpr int levels = 4, power = 4;
  constexpr int64_t step = 1 << power;
  float sums[levels][columns] = {};
  int64_t i = 0;
  const auto add = [&] {
    for (int64_t c = 0; c < columns; c++) sums[0][c] += from[i * stride + c];
    i++;
  };
  while (i + step <= rows) {
    for (int64_t j = 0; j < step; j++) add();
    for (int level = 1; level < levels; level++) {
      for (int64_t c = 0; c < columns; c++) sums[level][c] += sums[level - 1][c], sums[level - 1][c] = 0;
      if ((i & ((step - 1) << (level * power))) != 0) break;
    }
  }
  while (i < rows) add();
  for (int level = 1; level < levels; level++)
    for (int64_t c = 0; c < columns; c++) sums[0][c] += sums[level][c];
  memcpy(to, sums[0], sizeof sums[0]);
}

}  // namespace

bool floats(const at::Tensor& t) {
  return t.device().is_cpu() && t.layout() == at::kStrided && t.scalar_type() == at::kFloat && !t._is_zerotensor();
}

bool few_floats(const at::Tensor& t) { return t.numel() < grain && floats(t) && t.is_contiguous(); }

at::Tensor empty_floats(at::IntArrayRef sizes) {
  runs("aten::empty");
  return at::Tensor(at::detail::empty_cpu(sizes, at::kFloat));
}

void copy_to_rows(const at::Tensor& vector, const at::Tensor& rows) {
  if (!few_floats(rows) || !vector.is_contiguous()) {
    rows.copy_(vector);
    return;
  }
  const int64_t n = vector.numel();
  float* to = rows.data_ptr<float>();
  for (int64_t i = 0; i < rows.numel(); i += n) memcpy(to + i, vector.data_ptr<float>(), n * sizeof(float));
}

at::Tensor sum_of_rows(const at::Tensor& matrix) {
  const int64_t rows = matrix.size(0), n = matrix.size(1);
  if (!few_floats(matrix) || rows < 2 || n % columns != 0) return matrix.sum(0);
  at::Tensor sum = empty_floats({n});
  for (int64_t c = 0; c < n; c += columns) sum_columns(matrix.data_ptr<float>() + c, rows, n, sum.data_ptr<float>() + c);
  return sum;
}

void add_to(const at::Tensor& sum, const at::Tensor& more) {
  float* to = sum.data_ptr<float>();
  const float* from = more.data_ptr<float>();
  each(to, to, from, sum.numel(), [](Four a, Four b) { return a + b; });
  sum.unsafeGetTensorImpl()->bump_version();
}

at::Tensor rectified(const at::Tensor& x) {
  if (!few_floats(x)) return at::relu(x);
  at::Tensor y = empty_floats(x.sizes());
  const float* from = x.data_ptr<float>();
  each(y.data_ptr<float>(), from, from, x.numel(), [](Four v, Four) { return unless(v < 0, v); });
  return y;
}

at::Tensor rectified_gradient(const at::Tensor& grad, const at::Tensor& result) {
  if (!few_floats(grad) || !few_floats(result)) return at::threshold_backward(grad, result, 0);
  at::Tensor out = empty_floats(result.sizes());
  each(out.data_ptr<float>(), grad.data_ptr<float>(), result.data_ptr<float>(), result.numel(), [](Four g, Four y) { return unless(y <= 0, g); });
  return out;
}

}  // namespace ps
