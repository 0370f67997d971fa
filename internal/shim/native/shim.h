// The C door to libtorch: plain C, opaque handles, integers and doubles.
//
// Every function that can fail returns its error in the same call (NULL = ok; the caller frees it with
// ps_error_free). No exception crosses this header and no thread-local state is part of the contract:
// everything a call depends on comes in through ps_mode.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uintptr_t ps_tensor;  // one strong reference to a TensorImpl, 0 = undefined; an integer, so that Go may hold it
typedef void* ps_op;      // a looked-up operator; lives for ever

// What a call runs under. Applied on entry and undone on exit.
typedef struct ps_mode {
  int32_t grad;          // 1: record the graph
  int32_t account;       // allocations are charged to this account: those of the CPU, or from PS_GPU_ACCOUNT on those of GPUs
  int32_t threads;       // intra-op threads; 0 leaves them alone
  int32_t device_type;   // c10::DeviceType
  int32_t device_index;  // for accelerators; -1 none
  int32_t autocast;      // on device_type; 1: to bfloat16, 2: to float16. Backward ignores it: the graph has the casts
  int32_t peer_index;    // of another device of the same type, whose current stream is peer_stream meanwhile; -1 none
  int64_t stream;        // of device_index: what the call queues work on; 0 its default stream
  int64_t peer_stream;
} ps_mode;

enum { PS_FAILED = 1, PS_OUT_OF_MEMORY = 2, PS_BAD_ARGUMENT = 3 };

typedef struct ps_error {
  int32_t kind;
  char* message;  // without backtrace
  // Backward only: the autograd node and the operator that were running, and the node's sequence number.
  char* node;
  char* op;
  uint64_t sequence;
  int64_t checkpoint;  // backward only: the checkpoint whose recomputation failed, 0 = none
  // PS_OUT_OF_MEMORY only.
  int32_t account;
  int64_t limit, live, requested;
} ps_error;

void ps_error_free(ps_error*);

// Tags of the flat argument encoding. Each value is one tag word and its payload words; lists carry their length first.
enum {
  PS_DEFAULT = 0,      // take the schema's default
  PS_NONE = 1,         // None
  PS_TENSOR = 2,       // handle
  PS_INT = 3,          // int64
  PS_DOUBLE = 4,       // bits of a double
  PS_BOOL = 5,         // 0 or 1
  PS_INTS = 6,         // n, n x int64
  PS_DOUBLES = 7,      // n, n x bits
  PS_TENSORS = 8,      // n, n x handle (0 = None, where the schema allows it)
  PS_STRING = 9,       // n bytes, ceil(n/8) words
  PS_SEED = 10,        // uint64: a fresh generator with that seed, on the mode's device
  PS_DEVICE = 11,      // type, index
};

// --- operators (op.cpp) ---
ps_error* ps_op_find(const char* name, const char* overload, ps_op* out, int32_t* arguments, int32_t* returns, const char** schema);
// Calls op with n encoded words. Results are encoded into out (capacity words), after their number of words in out[0]: PS_TENSOR h, PS_INT v, PS_DOUBLE v,
// PS_BOOL v, PS_NONE, and for lists of tensors PS_TENSORS n list (fetched, and its array freed, with ps_take_list; handles are owned).
// An operator may free the last use of a graph and with it a checkpoint, which tells Go: no argument may point into a goroutine's stack, which moves when it grows.
ps_error* ps_call(ps_op op, const ps_mode* mode, const uint64_t* words, int32_t n, uint64_t* out, int32_t capacity);
void ps_take_list(uint64_t list, int32_t n, ps_tensor* out);

// --- tensors (tensor.cpp) ---
void ps_retain(ps_tensor);
void ps_release(ps_tensor);
// Describes t: out[0] dtype (c10::ScalarType), [1] device type, [2] device index, [3] is leaf, [4] number of
// dimensions, then the sizes. out has room for PS_DESCRIPTION numbers: libtorch's own limit of 64 dimensions.
enum { PS_DESCRIPTION = 5 + 64 };
void ps_describe(ps_tensor, int64_t* out);
// The short questions, answered without describing the rest.
int32_t ps_dtype(ps_tensor);
int32_t ps_requires_grad(ps_tensor);
int64_t ps_numel(ps_tensor);
uintptr_t ps_storage(ps_tensor, int64_t* bytes);        // the address of its storage, and the bytes
// The identity of a tensor's storage, which no other storage gets until it is dropped, although the memory is freed in its time.
uint64_t ps_storage_hold(ps_tensor);
void ps_storage_drop(uint64_t);
// Frees the memory of those tensors, n different handles, that nobody else uses: no other tensor in that memory and no other handle. What they are like stays.
void ps_hollow(const ps_tensor*, int32_t n);
ps_error* ps_refill(const ps_mode*, ps_tensor);  // gives a tensor without memory zeros
int64_t ps_changes(ps_tensor);  // how often the memory behind it was changed in place (its version counter)
ps_error* ps_from_bytes(const ps_mode*, const void* data, int64_t bytes, int32_t dtype, const int64_t* sizes, int32_t dims, ps_tensor* out);
// Copies t's elements in row-major order into data, which holds exactly `bytes`.
ps_error* ps_to_bytes(const ps_mode*, ps_tensor, void* data, int64_t bytes);
ps_error* ps_copy_from_bytes(const ps_mode*, ps_tensor, const void* data, int64_t bytes);

// --- autograd (autograd.cpp) ---
ps_error* ps_set_requires_grad(ps_tensor, int32_t);
ps_tensor ps_grad(ps_tensor);  // a new reference, or 0
ps_tensor ps_take_grad(ps_tensor);  // its reference, moved out: the tensor has no gradient then; or 0
ps_error* ps_set_grad(ps_tensor, ps_tensor grad_or_null);
// What a tensor is as it goes on to another layer (dense.hpp). If PS_DENSE, the gradient that comes back to it is made dense. PS_FOREIGN: given, by its
// maker, whose node is left alone.
enum { PS_GAPS = 0, PS_DENSE = 1, PS_FOREIGN = 2 };
ps_error* ps_border(ps_tensor, int32_t given, int32_t* out);
ps_error* ps_backward(const ps_mode*, const ps_tensor* outputs, const ps_tensor* grads, int32_t n, int32_t keep_graph);
// A backward that is prepared holds the gradients and the graph, and not the outputs. It is run once, which frees it and the graph as it goes, or dropped.
ps_error* ps_backward_prepare(const ps_mode*, const ps_tensor* outputs, const ps_tensor* grads, int32_t n, uint64_t* prepared);
ps_error* ps_backward_run(const ps_mode*, uint64_t prepared);
void ps_backward_drop(uint64_t prepared);
// Takes gradients of weights out of a prepared backward, for a second one, later, that is run after it: see split.cpp. first are leaves whose gradients stay, beside those of gates.
ps_error* ps_backward_split(const ps_mode*, uint64_t prepared, const ps_tensor* first, int32_t n, uint64_t* later);
uint64_t ps_sequence(void);  // the calling thread's next autograd sequence number

// --- checkpoints: nodes whose backward is Go's (checkpoint.cpp) ---
// One recomputation, asked for by a backward.
typedef struct ps_recomputation {
  uint64_t sequence;       // of the checkpoint's node
  int32_t inputs, outputs; // how many
  int32_t nested;          // how many recomputations this thread is inside of already
  int32_t last;            // 1: the graph is not kept, there will be no other
  const int32_t* wanted;   // [inputs] 1 where a gradient is wanted
  ps_tensor* input;        // [inputs] borrowed: detached, requiring a gradient where one is wanted; 0 where the input was undefined, or is not held
  ps_tensor* grad;         // [outputs] references that are given away: the gradients that came; 0 where none did
  ps_tensor* input_grad;   // [inputs] out: references that the caller takes over, or 0
} ps_recomputation;
// Runs the function of checkpoint id again, and its backward; 0 is success. It is called on the thread that runs the node, which need not be one of Go's.
typedef int32_t (*ps_recompute)(int64_t id, ps_recomputation*);
// Says that checkpoint id will not be asked for again.
typedef void (*ps_forget)(int64_t id);
void ps_checkpoint_register(ps_recompute, ps_forget);  // once, before the first ps_checkpoint
// Attaches outputs, computed from inputs without a graph, to one node: attached[i] is outputs[i]'s memory under it, or, where outputs[i] cannot have a
// gradient, a second reference. 0 stands for an undefined tensor on both sides. With hold the node holds the inputs. It calls forget when it cannot be asked again.
ps_error* ps_checkpoint(int64_t id, int32_t hold, const ps_tensor* inputs, int32_t n, const ps_tensor* outputs, int32_t m, ps_tensor* attached);

// --- accounts (account.cpp) ---
enum { PS_GPU_ACCOUNT = 1024, PS_ACCOUNTS = PS_GPU_ACCOUNT + 64 };  // those of GPUs are the last ones
typedef struct ps_account {
  int64_t live, peak, limit;
  int64_t cached;  // free blocks kept for reuse
  int64_t taken;   // of the system, or reserved on a GPU: blocks of live data, with headers and rounding, and free ones
  int64_t requested;  // of libtorch's allocator for a GPU and not freed, by any account; elsewhere 0
} ps_account;
void ps_account_get(int32_t, ps_account*);
void ps_account_limit(int32_t, int64_t limit);  // 0 = none; free blocks beyond it go back to the system
void ps_account_reset_peak(int32_t);
void ps_account_raise_peak(int32_t, int64_t peak);  // to at least so much
int64_t ps_account_own(int32_t);  // the most live bytes since it was asked last
void ps_account_trim(int32_t);  // gives cached blocks back to the system
void ps_heap_trim(void);        // gives back what malloc keeps free, of any thread

// --- threads and BLAS (threads.cpp) ---
ps_error* ps_pin_thread(const int32_t* cpus, int32_t n);
void ps_tag_thread(int64_t tag);               // marks the calling OS thread with a number; 0 = none
int64_t ps_thread_tag(void);
// The kernels that compute, as names that live for ever. They decide the speed, and the last bits of results.
const char* ps_blas_core(void);                // the BLAS kernel set in use, or ""
const char* ps_blas_version(void);             // such as "OpenBLAS 0.3.21" or "MKL 2024.2", or ""
const char* ps_onednn_version(void);           // such as "3.13.3", or ""
const char* ps_blas_better_core(void);         // the set that this processor should use instead, or NULL: the one in use is right, or unknown
ps_error* ps_blas_use_core(const char* core);  // call before the first BLAS call of any thread
const char* ps_aten_kernels(void);             // the instruction set that ATen's own kernels use, such as "AVX512", or ""
const char* ps_aten_better_kernels(void);      // the one that they should use on this processor, or NULL
int32_t ps_onednn_better_isa(void);            // the least that they should use on this processor, or 0 if they do
int32_t ps_onednn_isa(void);                   // dnnl_cpu_isa_t that oneDNN's kernels use at most, or -1
double ps_fma_peak(void);                      // multiply-adds of one core in float operations per second, best of several trials; 0 = unknown

// --- streams and events of GPUs (devicestreams.cpp) ---
// A stream is a number of libtorch's, and 0 is the default one. Events are the caller's, who frees them, also while a stream still waits for them.
typedef uintptr_t ps_event;
ps_error* ps_stream_open(int32_t device_type, int32_t device_index, int64_t* stream);  // of a pool, which gives each of them out several times
// An event that is done when all work queued on the stream so far is. Only of a timed one ps_event_seconds knows the time.
ps_error* ps_event_record(int32_t device_type, int32_t device_index, int64_t stream, int32_t timed, ps_event* out);
ps_error* ps_event_wait(ps_event, int32_t device_type, int32_t device_index, int64_t stream);  // work queued on the stream from now on begins when the event is done; does not block
ps_error* ps_event_synchronize(ps_event);                              // blocks until the event is done
ps_error* ps_event_seconds(ps_event from, ps_event to, double* out);  // both timed and done
void ps_event_free(ps_event);

// --- algorithms and NCCL of GPUs (gpu.cpp, nccl.cpp) ---
// Whether GPUs compute the same bits each time, which costs speed, and whether products and convolutions of float32 may be in TF32, of 10 bits of mantissa; for all threads. Call it before
// the first product.
void ps_gpu_numerics(int32_t deterministic, int32_t tf32);
enum { PS_DETERMINISTIC = 1, PS_TF32_CONVOLUTIONS = 2, PS_TF32_PRODUCTS = 4 };
int32_t ps_gpu_numerics_in_force(void);  // as libtorch has them
const char* ps_gpu_libraries(void);      // such as "cuBLAS 13.1.0, cuDNN 9.19.0"; "" without CUDA
const char* ps_environment(const char* name);  // as libtorch reads it, with what is set here, or NULL
// Takes the workspaces of products for the calling thread and the mode's stream, if it is a GPU's, on no account, as the first product there does.
ps_error* ps_prepare_products(const ps_mode*);

// A communicator of two processes, for what one sends to the other. Both open it with the same id, which one of them makes. Where there is a stop, it is looked at while the call
// waits for the other process, and ends that when it is not 0.
typedef uintptr_t ps_nccl;
enum { PS_NCCL_ID = 128 };
ps_error* ps_nccl_id(uint8_t id[PS_NCCL_ID]);
// Blocks until the other one has opened it too. The sender has rank 0.
ps_error* ps_nccl_open(const uint8_t id[PS_NCCL_ID], int32_t rank, int32_t device_index, const volatile int32_t* stop, ps_nccl* out);
// Queues transfers of dense tensors' memory on streams, all in one group: none waits for another one to be queued. The rank in a communicator says its direction.
ps_error* ps_nccl_transfer(const ps_nccl* comms, const ps_tensor* tensors, const int64_t* streams, int32_t n, const volatile int32_t* stop);
ps_error* ps_nccl_error(ps_nccl);                     // what has failed meanwhile, or NULL
void ps_nccl_abort(const ps_nccl* comms, int32_t n);      // ends what was queued, and frees the communicators
void ps_nccl_close(const ps_nccl* comms, int32_t n, const volatile int32_t* stop);  // frees them when what was queued is done
ps_error* ps_gpu_uuid(int32_t device_index, char out[33]);  // what no other GPU of any machine has, in hex

const char* ps_version(void);
const char* ps_library(void);             // the file of libtorch_cpu, or ""
int32_t ps_devices(int32_t device_type);  // how many there are; of the CPU 1
ps_error* ps_gpu_model(int32_t index, char* name, int32_t capacity);  // a GPU's name, as its driver has it; takes nothing of the GPU
ps_error* ps_gpu_unused(int32_t index, int64_t* bytes);               // that nobody has taken, when this thread has taken what products need
void ps_gpu_refuse_waits(int32_t on);  // has libtorch's operators fail that wait for a GPU, of all threads
int32_t ps_cuda_version(void);            // that of CUDA that this build was compiled with, 12040 for 12.4; 0 = without
int32_t ps_nccl_version(void);            // 22203 for 2.22.3; 0 = without

#ifdef __cplusplus
}
#endif
