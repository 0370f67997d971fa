// What a memory account is charged with, for all allocators.
#pragma once
#include "../shim.h"

#include <c10/core/Allocator.h>

namespace ps {

// Charges an account with a block. Beyond the limit it throws, and charges nothing.
void charge(int32_t account, int64_t bytes);
// Ends the charge. data is the block, which may be lent.
void discharge(int32_t account, int64_t bytes, void* data);
// Throws that the account has no memory for so many bytes, for a reason of the device's.
[[noreturn]] void refuse(int32_t account, int64_t bytes, const char* why);

// What a GPU's allocator tells of its blocks and does with them: see gpu.cpp. A build without GPUs has null.
struct GPUMemory {
  // Whether the block is charged, to which account, and with how much.
  bool (*find)(const c10::DataPtr&, int32_t* account, int64_t* bytes);
  // Fills in cached and taken of an account.
  void (*count)(int32_t account, ps_account* out);
  void (*limit)(int32_t account, int64_t bytes);
  void (*trim)(int32_t account);
};
extern const GPUMemory* gpu_memory;

}  // namespace ps
