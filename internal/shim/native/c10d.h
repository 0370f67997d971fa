// The C door to c10d, libtorch's communication between processes: a store for the rendezvous, and sends and receives over Gloo. As in shim.h, every
// function that can fail returns its error in the same call.
#pragma once
#include "shim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef uintptr_t ps_store;     // a TCPStore
typedef uintptr_t ps_gloo;      // a ProcessGroupGloo
typedef uintptr_t ps_transfer;  // a send or a receive under way

// Connects to the store at host:port, which server also starts. It waits at most timeout_ms, as does each question to the store. The functions of a
// store may be called by several threads at a time.
ps_error* ps_store_open(const char* host, int32_t port, int32_t server, int64_t timeout_ms, ps_store* out);
ps_error* ps_store_set(ps_store, const char* key, const void* data, int64_t bytes);
ps_error* ps_store_add(ps_store, const char* key, int64_t n, int64_t* sum);
// Gives the value of a key, which the caller frees with free, or NULL if there is none yet. It does not wait for one.
ps_error* ps_store_get(ps_store, const char* key, void** data, int64_t* bytes);
// Ends a ps_gloo_open that waits for a key of this store.
void ps_store_interrupt(ps_store);
void ps_store_close(ps_store);

// Joins `size` processes, which find each other by keys of the store below the prefix. It listens on the network interface of that address. It blocks
// until all are joined, at most timeout_ms.
ps_error* ps_gloo_open(ps_store, const char* prefix, int32_t rank, int32_t size, const char* address, int64_t timeout_ms, ps_gloo* out);
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
