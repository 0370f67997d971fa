// Matrix products on several threads, each of which computes a part of the result.
#pragma once
#include "../internal.hpp"

#include <c10/util/FunctionRef.h>

namespace ps {

// Has do_part compute the rows and columns of an m x n result, of sums over k, that it is given, in parts that make up all of it: as many parts as
// the calling thread has intra-op threads and the product is worth, each on one of them.
void in_parts(int64_t m, int64_t n, int64_t k, c10::function_ref<void(int64_t from_m, int64_t to_m, int64_t from_n, int64_t to_n)> do_part);

// C [m, n] = op(A) op(B) + beta C by columns: the product that libtorch asks its BLAS for.
void blas_product(char op_a, char op_b, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc);

// Whether libtorch gets the products that it asks for from blas_product, as one that has a BLAS inside does not.
bool multiplies_for_libtorch();

}  // namespace ps
