// Which libtorch the C++ here is for. Both units include it first, and the compiler ends at the first error: without it another libtorch is refused in pages.
#pragma once
#if !__has_include(<torch/csrc/api/include/torch/version.h>)
#error "There is no libtorch. Debian: apt-get install libtorch-dev libopenblas0-pthread. Without root: scripts/torch 2.15.0 go build (docs/libtorch.md)"
#endif
#include <torch/csrc/api/include/torch/version.h>

#define PS_TORCH (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR)
#if PS_TORCH < 113
#error "Penstock wants libtorch 1.13 or later, and this one is older"
#elif defined(PENSTOCK_CUDA) && PS_TORCH < 206
#error "With CUDA Penstock wants libtorch 2.6 or later, and this one is older. PENSTOCK_CUDA=0 builds for CPUs"
#endif
