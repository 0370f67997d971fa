// Products of floats and a large weight with few rows, as a micro-batch has them, for cores with AVX-512.
//
// The libraries copy a part of the weight into blocks and then multiply, so that a core either loads or computes. Kernels that read the weight prefetch the part that they need next
// while they compute; the one for its gradient adds a tile at a time. docs/decisions.md has the numbers.
//
// The order in which the terms of an element are added depends on k alone: a part of a product, for a thread or of fewer rows, has the bits of the whole.
#pragma once
#include <cstdint>

namespace ps::streamed {

// Rows up to which the kernels below take less time than a library's.
constexpr int64_t few_rows = 64;

// C [m, n] = A B^T, of A [m, k] and the large B [n, k], all by rows; added to C where `adds` is true.
void by_transposed(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb, bool adds, float* c, int64_t ldc);

// C [m, n] = A B, of A [m, k] and the large B [k, n], for m of up to few_rows.
void plain(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc);

// C [m, n] = A^T B for a large C, of A [k, m] and B [k, n] with k of up to few_rows, all by rows; added to C where `adds` is true.
void transposed_by(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb, bool adds, float* c, int64_t ldc);

}  // namespace ps::streamed
