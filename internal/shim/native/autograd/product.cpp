// Products by kernels for few rows (streamed.hpp), or by oneDNN's GEMM where it beats the BLAS that libtorch calls.
//
// A GEMM copies its operands into blocks that its kernel reads in order. OpenBLAS 0.3.21 does so on every call and for both operands. oneDNN's copies less of a weight with few rows,
// and its kernels for AVX-512 are faster; docs/decisions.md has the numbers. With AVX2 alone the two are equally fast, and the BLAS computes. A PyTorch wheel hides
// its oneDNN, and its MKL is as fast.
//
// A copy of each weight made once a step would take twice the bytes of the weights, and the weight has to come from memory either way.
//
// oneDNN is found by name, as libtorch has it loaded: dnnl_sgemm is the same function in its versions 1 to 3.
#include "product.hpp"
#include "plain.hpp"
#include "streamed.hpp"
#include "../runtime/gemm.hpp"

#include <cstring>
#include <dlfcn.h>

namespace ps {
namespace {

// C [m, n] = op(A) op(B) + beta C, all by rows.
using Gemm = int (*)(char op_a, char op_b, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda, const float* b, int64_t ldb, float beta,
                     float* c, int64_t ldc);

// Whether AVX-512 may be used. A wheel hides oneDNN's answer, so that ATen's is taken.
bool avx512() {
  static const bool has = [] {
    const int32_t isa = ps_onednn_isa(), least = 0x27;
    return isa >= 0 ? (isa & least) == least : std::strcmp(ps_aten_kernels(), "AVX512") == 0;
  }();
  return has;
}

// oneDNN's GEMM; null where the process has none that can be found, or none for AVX-512.
Gemm onednn() {
  static const Gemm gemm = avx512() ? reinterpret_cast<Gemm>(dlsym(RTLD_DEFAULT, "dnnl_sgemm")) : nullptr;
  return gemm;
}

enum class By { blas, onednn, streamed };

// Is the product large enough to be worth another kernel than the BLAS's? Below some 2^18 multiply-adds the call takes longer than a BLAS's small product.
bool large(int64_t m, int64_t n, int64_t k) { return m > 0 && n > 0 && k > 0 && m * n * k >= int64_t{1} << 18; }

// What computes a product of floats, of a weight or its gradient of [out, in], and so many rows.
By fastest(int64_t rows, int64_t out, int64_t in) {
  if (!avx512() || !large(rows, out, in)) return By::blas;
  return rows <= streamed::few_rows ? By::streamed : onednn() != nullptr ? By::onednn : By::blas;
}
By fastest(const at::Tensor& a, const at::Tensor& b, int64_t rows, int64_t out, int64_t in) {
  return floats(a) && floats(b) ? fastest(rows, out, in) : By::blas;
}

// C [m, n] = op(A) op(B) + beta C by rows, of contiguous matrices: by the kernels for few rows, by oneDNN, or as aten::addmm has the BLAS compute it.
void gemm(By by, char op_a, char op_b, int64_t m, int64_t n, int64_t k, const at::Tensor& a, const at::Tensor& b, float beta, const at::Tensor& c) {
  const int64_t lda = a.size(-1), ldb = b.size(-1);
  const float *of_a = a.data_ptr<float>(), *of_b = b.data_ptr<float>();
  float* to = c.data_ptr<float>();
  if (by == By::blas) return blas_product(op_b, op_a, n, m, k, of_b, ldb, of_a, lda, beta, to, n);
  in_parts(m, n, k, [&](int64_t from_m, int64_t to_m, int64_t from_n, int64_t to_n) {
    const int64_t rows = to_m - from_m, columns = to_n - from_n;
    const float *part_a = of_a + from_m * (op_a == 'N' ? lda : 1), *part_b = of_b + from_n * (op_b == 'N' ? 1 : ldb);
    float* part = to + from_m * n + from_n;
    if (by == By::streamed) {
      if (op_a == 'T') streamed::transposed_by(rows, columns, k, part_a, lda, part_b, ldb, beta != 0, part, n);
      else if (op_b == 'T') streamed::by_transposed(rows, columns, k, part_a, lda, part_b, ldb, beta != 0, part, n);
      else streamed::plain(rows, columns, k, part_a, lda, part_b, ldb, part, n);
      return;
    }
    const int status = onednn()(op_a, op_b, rows, columns, k, 1, part_a, lda, part_b, ldb, beta, part, n);
    TORCH_CHECK(status == 0, "oneDNN's product of ", m, " x ", k, " and ", k, " x ", n, " failed with status ", status);
  });
}

// Is it a product that aten::addmm would give to the BLAS with the operands as they lie? With vectors and other layouts it does otherwise, and has to be asked.
// Where a product takes microseconds the dispatcher takes more.
bool direct(int64_t m, int64_t n, int64_t k, const at::Tensor& a, const at::Tensor& b) {
  return floats(a) && floats(b) && m > 1 && n > 1 && k > 1 && a.is_contiguous() && b.is_contiguous() && multiplies_for_libtorch();
}

}  // namespace

bool accumulates(const at::Tensor& weight) {
  if (!weight.is_leaf() || !weight.requires_grad()) return false;
  const at::Tensor& grad = weight.grad();
  return grad.defined() && grad.is_contiguous() && !grad.requires_grad() && grad.sizes() == weight.sizes() && grad.dtype() == weight.dtype();
}

bool quick(const at::Tensor& a, const at::Tensor& b, int64_t m, int64_t n, int64_t k) { return floats(a) && floats(b) && fastest(m, n, k) != By::blas; }

int64_t rows_of(const at::Tensor& t) { return c10::multiply_integers(t.sizes().slice(0, t.dim() - 1)); }

at::Tensor by_rows(const at::Tensor& t) {
  return (t.dim() == 2 ? t : t.reshape({rows_of(t), t.size(-1)})).contiguous();
}

at::Tensor linear_output(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const auto aten = [&](const at::Tensor& x) { return at::linear(x, weight, bias.defined() ? OptionalTensor(bias) : OptionalTensor()); };
  if (x.dim() >= 2 && weight.dim() == 2) // in these words in every version of libtorch
    TORCH_CHECK(x.size(-1) == weight.size(1), "mat1 and mat2 shapes cannot be multiplied (", rows_of(x), "x", x.size(-1), " and ", weight.size(1), "x", weight.size(0), ")");
  if (x.dim() < 1 || weight.dim() != 2 || x.size(-1) != weight.size(1)) return aten(x);
  const int64_t out = weight.size(0), in = weight.size(1), rows = rows_of(x);
  c10::DimVector sizes(x.sizes());
  sizes.back() = out;
  const bool ours = floats(x) && floats(weight) && (!bias.defined() || (floats(bias) && bias.sizes() == at::IntArrayRef{out}));
  const By by = ours ? fastest(x, weight, rows, out, in) : By::blas;
  const at::Tensor of = x.contiguous();
  if (by == By::blas && !(ours && direct(rows, out, in, of, weight))) return x.dim() < 3 ? aten(of) : at::_unsafe_view(aten(by_rows(of)), sizes);
  const at::Tensor y = empty_floats(sizes);
  if (bias.defined()) copy_to_rows(bias, y);
  gemm(by, 'N', 'T', rows, out, in, of, weight.contiguous(), bias.defined() ? 1 : 0, y);
  return y;
}

at::Tensor linear_for_input(const at::Tensor& dy, const at::Tensor& weight) {
  const int64_t rows = dy.size(0), out = weight.size(0), in = weight.size(1);
  const By by = fastest(dy, weight, rows, out, in);
  if (by == By::blas && !direct(rows, in, out, dy, weight)) return dy.mm(weight);
  const at::Tensor dx = empty_floats({rows, in});
  gemm(by, 'N', 'N', rows, in, out, dy.contiguous(), weight.contiguous(), 0, dx);
  return dx;
}

at::Tensor linear_for_weight(const at::Tensor& dy, const at::Tensor& x, at::Tensor sum) {
  const int64_t rows = dy.size(0), out = dy.size(1), in = x.size(1);
  const bool adds = sum.defined();
  // From few rows to these, oneDNN is up to a fifth slower than the BLAS if the weight is large.
  const bool slow = rows > streamed::few_rows && rows < 128;
  const By by = slow ? By::blas : fastest(dy, x, rows, out, in);
  if (by == By::blas && !direct(out, in, rows, dy, x)) return adds ? sum.addmm_(dy.t(), x) : dy.t().mm(x);
  if (!adds) sum = empty_floats({out, in});
  gemm(by, 'T', 'N', out, in, rows, dy.contiguous(), x.contiguous(), adds ? 1 : 0, sum);
  sum.unsafeGetTensorImpl()->bump_version();
  return sum;
}

}  // namespace ps
