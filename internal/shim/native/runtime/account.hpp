// What a memory account is charged with, for all allocators.
#pragma once
#include "../shim.h"

#include <c10/core/Allocator.h>

namespace ps {

// Charges an account with a block that is not there yet, and returns its live bytes. Beyond the limit it throws, and charges nothing.
int64_t reserve(int32_t account, int64_t bytes);
// Counts the block when it is there. What is refused after reserve is no peak.
void count_peak(int32_t account, int64_t live);
// Ends the charge.
void discharge(int32_t account, int64_t bytes);
// Throws that the account has no memory for so many bytes, for a reason of the device's. What it throws is no
// c10::OutOfMemoryError: cuDNN's loop over plans goes on to the next plan at that one, so that a limit would choose the
// algorithm, and with it the bits.
[[noreturn]] void refuse(int32_t account, int64_t bytes, const char* why);

// What a GPU's allocator tells of its blocks and does with them: see gpu.cpp. A build without GPUs has null.
struct GPUMemory {
  // Fills in cached and taken of an account.
  void (*count)(int32_t account, ps_account* out);
  void (*limit)(int32_t account, int64_t bytes);  // more than 0
  void (*trim)(int32_t account);
};
extern const GPUMemory* gpu_memory;

}  // namespace ps
