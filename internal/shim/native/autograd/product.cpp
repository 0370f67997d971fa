// Products by oneDNN's GEMM where it beats the BLAS that libtorch calls.
//
// A GEMM copies its operands into blocks that its kernel reads in order. OpenBLAS 0.3.21 does so on every call and for both operands: with the 32 rows of a micro-batch and
// a 1024 x 1024 weight that is half of the time. oneDNN's copies less of a weight with few rows, and its kernels for AVX-512 are faster; docs/benchmarks.md has the
// numbers. With AVX2 alone the two are equally fast, and the BLAS computes.
//
// A copy of each weight made once a step (oneDNN's blocked layout) would save another eighth of the products with 32 rows and nothing from 128 rows on, as the weight has to come
// from memory either way. It would take twice the bytes of the weights.
//
// oneDNN is found by name, as libtorch has it loaded: dnnl_sgemm is the same function in its versions 1 to 3.
#include "product.hpp"
#include "../runtime/gemm.hpp"

#include <dlfcn.h>

namespace ps {
namespace {

// C [m, n] = op(A) op(B) + beta C, all by rows.
using Gemm = int (*)(char op_a, char op_b, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda, const float* b, int64_t ldb, float beta,
                     float* c, int64_t ldc);

// oneDNN's GEMM; null where the process has none, or none for AVX-512.
Gemm onednn() {
  static const Gemm gemm = [] {
    const int32_t isa = ps_onednn_isa(), avx512 = 0x27;
    return isa >= 0 && (isa & avx512) == avx512 ? reinterpret_cast<Gemm>(dlsym(RTLD_DEFAULT, "dnnl_sgemm")) : nullptr;
  }();
  return gemm;
}

bool floats(const at::Tensor& t) {
  return t.device().is_cpu() && t.layout() == at::kStrided && t.scalar_type() == at::kFloat && !t._is_zerotensor();
}

// Is oneDNN faster for this many multiply-adds? Below some 2^18 its call takes longer than OpenBLAS's small product.
bool faster(int64_t m, int64_t n, int64_t k) {
  return m > 0 && n > 0 && k > 0 && m * n * k >= int64_t{1} << 18 && onednn() != nullptr;
}

void gemm(char op_a, char op_b, int64_t m, int64_t n, int64_t k, const at::Tensor& a, const at::Tensor& b, float beta, const at::Tensor& c) {
  const int64_t lda = a.size(-1), ldb = b.size(-1);
  const float *of_a = a.data_ptr<float>(), *of_b = b.data_ptr<float>();
  float* to = c.data_ptr<float>();
  in_parts(m, n, k, [&](int64_t from_m, int64_t to_m, int64_t from_n, int64_t to_n) {
    const int status = onednn()(op_a, op_b, to_m - from_m, to_n - from_n, k, 1, of_a + from_m * (op_a == 'N' ? lda : 1), lda, of_b + from_n * (op_b == 'N' ? 1 : ldb), ldb, beta,
                                to + from_m * n + from_n, n);
    TORCH_CHECK(status == 0, "oneDNN's product of ", m, " x ", k, " and ", k, " x ", n, " failed with status ", status);
  });
}

}  // namespace

bool accumulates(const at::Tensor& weight) {
  if (!weight.is_leaf() || !weight.requires_grad()) return false;
  const at::Tensor& grad = weight.grad();
  return grad.defined() && grad.is_contiguous() && !grad.requires_grad() && grad.sizes() == weight.sizes() && grad.dtype() == weight.dtype();
}

bool quick(const at::Tensor& a, const at::Tensor& b, int64_t m, int64_t n, int64_t k) { return floats(a) && floats(b) && faster(m, n, k); }

at::Tensor linear_output(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const auto aten = [&] { return at::linear(x, weight, bias.defined() ? OptionalTensor(bias) : OptionalTensor()); };
  if (!floats(x) || !floats(weight) || x.dim() < 1 || weight.dim() != 2 || x.size(-1) != weight.size(1)) return aten();
  const int64_t out = weight.size(0), in = weight.size(1);
  if (bias.defined() && (!floats(bias) || bias.sizes() != at::IntArrayRef{out})) return aten();
  if (in == 0 || !faster(x.numel() / in, out, in)) return aten();
  auto sizes = x.sizes().vec();
  sizes.back() = out;
  const at::Tensor y = bias.defined() ? bias.expand(sizes).clone(at::MemoryFormat::Contiguous) : at::empty(sizes, x.options());
  gemm('N', 'T', x.numel() / in, out, in, x.contiguous(), weight.contiguous(), bias.defined() ? 1 : 0, y);
  return y;
}

at::Tensor linear_for_input(const at::Tensor& dy, const at::Tensor& weight) {
  const int64_t rows = dy.size(0), out = weight.size(0), in = weight.size(1);
  if (!floats(dy) || !floats(weight) || !faster(rows, in, out)) return dy.mm(weight);
  const at::Tensor dx = at::empty({rows, in}, dy.options());
  gemm('N', 'N', rows, in, out, dy.contiguous(), weight.contiguous(), 0, dx);
  return dx;
}

at::Tensor linear_for_weight(const at::Tensor& dy, const at::Tensor& x, at::Tensor sum) {
  const int64_t rows = dy.size(0), out = dy.size(1), in = x.size(1);
  const bool adds = sum.defined();
  // Between these, oneDNN is up to a fifth slower if the weight is large.
  const bool slow = rows > 40 && rows < 128;
  if (slow || !floats(dy) || !floats(x) || !faster(out, in, rows)) return adds ? sum.addmm_(dy.t(), x) : dy.t().mm(x);
  if (!adds) sum = at::empty({out, in}, dy.options());
  gemm('T', 'N', out, in, rows, dy.contiguous(), x.contiguous(), adds ? 1 : 0, sum);
  sum.unsafeGetTensorImpl()->bump_version();
  return sum;
}

}  // namespace ps
