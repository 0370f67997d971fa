// The C door to c10d, libtorch's communication between processes: sends and receives over Gloo. As in shim.h,
// every function that can fail returns its error in the same call.
#pragma once
#include "shim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef uintptr_t ps_board;     // entries by which Gloo's processes find each other
typedef uintptr_t ps_gloo;      // a ProcessGroupGloo
typedef uintptr_t ps_transfer;  // a send or a receive under way

// Makes a board. It is never freed: a process has one or two. Its functions may be called by several threads.
ps_board ps_board_new(void);
// Takes the next entry that Gloo has set, which the caller brings to all other processes. It waits for one, and
// returns 0 after ps_board_close. The caller frees key and value with free.
int32_t ps_board_take(ps_board, char** key, void** value, int64_t* bytes);
// Gives Gloo an entry of another process.
void ps_board_put(ps_board, const char* key, const void* value, int64_t bytes);
// Ends ps_board_take, and a ps_gloo_open that waits for an entry.
void ps_board_close(ps_board);

// Joins `size` processes, each of which has a board. It listens on the network interface of that address. It
// blocks until all are joined, at most timeout_ms.
ps_error* ps_gloo_open(ps_board, int32_t rank, int32_t size, const char* address, int64_t timeout_ms, ps_gloo* out);
// Closes all connections. No transfer may be left.
void ps_gloo_close(ps_gloo);

// The memory of a dense tensor, in the order of addresses: a view of one dimension, without a graph.
ps_error* ps_memory(ps_tensor, ps_tensor* out);
// Begins to send a dense tensor's memory, or to fill it. The transfer holds the tensor.
ps_error* ps_gloo_send(ps_gloo, ps_tensor, int32_t to, int32_t tag, ps_transfer* out);
ps_error* ps_gloo_receive(ps_gloo, ps_tensor, int32_t from, int32_t tag, ps_transfer* out);
// Blocks until the transfer has ended: done is 1 if all bytes are there, 0 after ps_transfer_abort. Once at most.
ps_error* ps_transfer_wait(ps_transfer, int32_t* done);
// Ends a wait, now or later, from any thread. What was aborted may have moved a part of the bytes, so that its tag is of no use any more.
void ps_transfer_abort(ps_transfer);
// Drops a transfer. One that has not ended is cut off, and nothing is written to its tensor afterwards.
void ps_transfer_free(ps_transfer);

#ifdef __cplusplus
}
#endif
