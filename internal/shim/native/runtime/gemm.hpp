// Matrix products on several threads, each of which computes a part of the result.
#pragma once
#include "../internal.hpp"

#include <c10/util/FunctionRef.h>

namespace ps {

// Has do_part compute the rows and columns of an m x n result, of sums over k, that it is given, in parts that make up all of it: as many parts as
// the calling thread has intra-op threads and the product is worth, each on one of them.
void in_parts(int64_t m, int64_t n, int64_t k, c10::function_ref<void(int64_t from_m, int64_t to_m, int64_t from_n, int64_t to_n)> do_part);

}  // namespace ps
