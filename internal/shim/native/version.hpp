// Which libtorch the C++ here is for. Both units include it first, and the compiler ends at the first error: without it another libtorch is refused in pages.
#pragma once
#include <torch/csrc/api/include/torch/version.h>

#define PS_TORCH (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR)
#if PS_TORCH < 113
#error "Penstock wants libtorch 1.13 or later, and this one is older"
#elif defined(PENSTOCK_CUDA) && PS_TORCH < 206
#error "With CUDA Penstock wants libtorch 2.6 or later, and this one is older. PENSTOCK_CUDA=0 builds for CPUs"
#endif
