// What a memory account is charged with, for all allocators.
#pragma once
#include "../shim.h"

#include <c10/core/Allocator.h>

namespace ps {

// What is live on an account with a block that it has reserved bytes for: all of it, and what is not lent.
struct Reserved { int64_t live, own; };
// Charges an account with a block that is not there yet. Beyond the limit it throws, and charges nothing.
Reserved reserve(int32_t account, int64_t bytes);
// Counts the block when it is there. What is refused after reserve is no peak.
void count_peak(int32_t account, Reserved with);
// Ends the charge. data is the block, which may be lent.
void discharge(int32_t account, int64_t bytes, void* data);
// Throws that the account has no memory for so many bytes, for a reason of the device's. What it throws is no
// c10::OutOfMemoryError: cuDNN's loop over plans goes on to the next plan at that one, so that a limit would choose the
// algorithm, and with it the bits.
[[noreturn]] void refuse(int32_t account, int64_t bytes, const char* why);

// What a GPU's allocator tells of its blocks and does with them: see gpu.cpp. A build without GPUs has null.
struct GPUMemory {
  // Whether the block is charged, to which account, and with how much.
  bool (*find)(const c10::DataPtr&, int32_t* account, int64_t* bytes);
  // Fills in cached and taken of an account.
  void (*count)(int32_t account, ps_account* out);
  void (*limit)(int32_t account, int64_t bytes);  // more than 0
  void (*trim)(int32_t account);
};
extern const GPUMemory* gpu_memory;

}  // namespace ps
