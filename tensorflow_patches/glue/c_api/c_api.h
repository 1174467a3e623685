// The C API for Python's ctypes (python/_src/runtime/c_api.py). C types only; nothing throws.
//
// Strings are UTF-8; `error` is a buffer of TFMPI_API_ERROR_BYTES, written when a call fails. Codes
// are those of core/base/status.h. A call blocks only if its comment says so. Unless a comment says
// otherwise, any thread may make a call. Calls need a started engine, except those about the
// process or the library: quota of cores, visible GPUs, ops, names of variables, seeds, switches.

#ifndef TFMPI_GLUE_C_API_C_API_H_
#define TFMPI_GLUE_C_API_C_API_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TFMPI_API_ERROR_BYTES 4096
#define TFMPI_API __attribute__((visibility("default")))

struct TfMpiOptions {
  const char* transport_library;  // empty: a single rank, without MPI
  const char* settings;           // RollCallOptions: lines that must be the same on all ranks
  double roll_call_timeout;       // seconds
  int64_t fusion_threshold;       // bytes
  double stall_warning;           // seconds; 0: never
  double stall_timeout;           // seconds; 0: never
  double collective_timeout;      // seconds
  double deadlock_timeout;        // seconds; 0: never
  const char* timeline;           // rank 0's file; empty: none
  int32_t stats;                  // 1: count, see tfmpi_stats_report
  int32_t ranks_per_node;         // 0: the actual nodes
  int32_t wire;                   // DataType of float32 averages between nodes
  int32_t sparse;                 // sparse_average.h's SparseMode
  const char* extras;             // names, separated by commas; see extras.h
  int32_t device_transport;       // core/device/choice.h's DeviceTransport
  int32_t shares_gpu;             // 1: NCCL may have several ranks on one GPU
  int32_t cray_gpus;              // 1: GPU support of Cray's MPI is enabled
  const char* nccl_library;       // a path, or a name for the dynamic linker
  int32_t shrink_on_fault;        // 1: the ranks continue after deaths
};

// Python's main thread, once. Waits for all ranks to start.
TFMPI_API int32_t tfmpi_start(const struct TfMpiOptions* options, char* error);
// During tfmpi_start, on another thread: writes which ranks it waits for, and what they must do,
// truncated to `bytes`; "" if it does not wait.
TFMPI_API void tfmpi_start_waits_for(char* out, int32_t bytes);
// On the thread of tfmpi_start, or on one that calls os._exit(0). Waits until every rank has
// joined. Requests submitted afterwards fail.
TFMPI_API int32_t tfmpi_join(char* error);
// Engine::Leave (`seconds`: `grace`) instead of tfmpi_join; also on a failed training thread.
TFMPI_API void tfmpi_leave(const char* reason, double seconds);
// LimitInterpreterEnd of runtime/interpreter_end.h, after tfmpi_join or tfmpi_leave.
TFMPI_API void tfmpi_limit_end(int32_t code, double seconds, const char* line);

// core/base/sizes.h: kOpBytes, kOwnOpBytes
TFMPI_API void tfmpi_op_sizes(int64_t out[2]);
// rank, size, local_rank, local_size, nodes, cores that the ranks of this node can use together
TFMPI_API void tfmpi_topology(int32_t out[6]);
// QuotaCores of core/cpu/cores.h.
TFMPI_API int32_t tfmpi_quota_cores(void);
// How often the ranks have continued after deaths; tfmpi_topology is that of this generation. 0
// without an engine.
TFMPI_API uint64_t tfmpi_generation(void);
// `why`: why this rank's script cannot continue with fewer ranks; "": it can. If a rank dies, all
// end with this reason.
TFMPI_API void tfmpi_set_needs_all(const char* why);
// The description of the transport; lives as long as the process.
TFMPI_API const char* tfmpi_transport(void);
// 1 if gradients are averaged in compiled steps, 0 if such steps fail
TFMPI_API int32_t tfmpi_compiles(void);
// tensors completed with ok, collectives, bytes, registrations seen, registrations decorated,
// gradients submitted by kernels, ApplyKernel::Applied, SynchronousUpdate::Updated
TFMPI_API void tfmpi_stats(uint64_t out[8]);

// After tfmpi_join, on rank 0, if it was started with `stats`: FormatStats of
// core/observability/stats.h, else "". Lives as long as the process.
TFMPI_API const char* tfmpi_stats_report(void);

// For the timeline: the caller has waited `seconds` for a batch of input, which has just arrived.
TFMPI_API void tfmpi_record_input(double seconds);
// SeedXla of internals/xla_seeds.h.
TFMPI_API void tfmpi_seed_xla(uint32_t first);

// Starts a collective on memory that the caller keeps until tfmpi_end. For allgather `out` is null,
// and tfmpi_end frees the result; for broadcast `in` is ignored: on the root `out` contains the
// data. Returns at once. `waits`: 0: a thread of the script waits for it, and others may use the
// library; 1: this thread is the only one of the script that uses the library, and waits for the
// result; 2: like 1, and this rank has no gradients until then; -1: no thread waits for it, and it
// can complete without ranks that have no gradients for now.
struct TfMpiOperation;
TFMPI_API struct TfMpiOperation* tfmpi_begin(const char* name, int32_t kind, int32_t reduce_op,
                                             int32_t dtype, int32_t root, const int64_t* shape,
                                             int32_t dims, const void* in, void* out,
                                             int32_t waits);
// Returns 1 once it has ended, 0 after `seconds`.
TFMPI_API int32_t tfmpi_wait(struct TfMpiOperation* operation, double seconds);
// For an allgather that has ended with ok: its data, and the total first dimension. Valid until
// tfmpi_end.
TFMPI_API const void* tfmpi_gathered(struct TfMpiOperation* operation, int64_t* rows);
// Frees the operation and returns the code with which it ended. If it has not ended, withdraws it
// first, and waits.
TFMPI_API int32_t tfmpi_end(struct TfMpiOperation* operation, char* error);

// One measurement of core/bench/bench.h; the fields are those of BenchCase. Called on all ranks, on
// Python's main thread.
struct TfMpiBenchCase {
  int32_t kind, dtype;
  int64_t count;
  int32_t tensors, direct_rounds, engine_rounds, min_samples, max_samples;
  double budget, timeout;  // seconds
};
// Writes the seconds of sample i of way w (BenchWay) to out[w * max_samples + i], and the number
// of samples to samples[w]. Blocks until all are taken, or one takes longer than `timeout`.
TFMPI_API int32_t tfmpi_bench(const struct TfMpiBenchCase* bench_case, double* out,
                              int32_t samples[3], char* error);

// On rank 0: sends all ranks one more post of `key`, without waiting. If `key` contains a line
// break, the text after it is the value of the post. On other ranks this does nothing.
TFMPI_API void tfmpi_post(const char* key);
// How many posts of this key this rank has received, or on rank 0 sent.
TFMPI_API int64_t tfmpi_posted(const char* key);
// Writes the value of post number `number` of this key, from 0, truncated to `bytes`.
TFMPI_API void tfmpi_posted_value(const char* key, int64_t number, char* out, int32_t bytes);

// What the script does, for messages on other ranks; see core/engine/script_state.h. Called on the
// thread that does it.
TFMPI_API void tfmpi_set_doing(const char* doing);
// The number of steps done in what tfmpi_set_doing names; its caller's thread writes it. Lives as
// long as the process.
TFMPI_API int64_t* tfmpi_steps(void);
// 1: several threads of the script use the library, so the script may continue while one waits.
TFMPI_API void tfmpi_set_several_threads(int32_t several);
// How many posts, of any key, this rank has received, or on rank 0 sent.
TFMPI_API uint64_t tfmpi_posts_heard(void);
// Reports that this thread, the only one that uses the library, waits for a file of rank 0 and has
// seen this many posts; returns at once. `has_no_gradients`: 1: the others need not wait for
// gradients of this rank meanwhile. Call it again after reading new posts. Fails if the group has
// failed.
TFMPI_API int32_t tfmpi_wait_for_file(const char* file, uint64_t posts, int32_t has_no_gradients,
                                      char* error);
// Reports that this wait is over.
TFMPI_API void tfmpi_file_is_there(void);
// How many gradients the others have averaged without this rank while it waited.
TFMPI_API uint64_t tfmpi_missed(void);
// Resets that number, after this rank's variables have become equal to theirs.
TFMPI_API void tfmpi_caught_up(void);

// Names of variables: see variable_names.h.
TFMPI_API void tfmpi_declare_variable(const char* container, const char* name, const char* scope);
// Declares the variable and writes its name, the same on every rank, truncated to `bytes`.
TFMPI_API void tfmpi_variable_name(const char* container, const char* name, const char* scope,
                                   char* out, int32_t bytes);
TFMPI_API void tfmpi_mark_synchronized(const char* container, const char* name, const char* scope);
// Sets the scope of the session whose kernels this thread creates from now on; empty: unknown.
TFMPI_API void tfmpi_set_thread_scope(const char* scope);
// `session`: the number in its metadata.
TFMPI_API void tfmpi_set_scope(int64_t session, const char* scope);

// Fetches of variables without a copy; see shared_fetches.h. `data`: of a fetched array.
TFMPI_API void tfmpi_share_fetches(int32_t share);
TFMPI_API int32_t tfmpi_is_lone_variable(const void* data);

// The GPUs visible to this process, in order: lines "ADDRESS NAME", truncated to `bytes`; "" if
// there is no driver. Creates no context.
TFMPI_API void tfmpi_gpus(char* out, int32_t bytes);
// 1: data on GPUs is averaged through the hosts; 0: it is not; -1: the ranks have not chosen yet,
// which they do at the first average on GPUs in which all take part.
TFMPI_API int32_t tfmpi_gpus_staged(void);

// Fingerprint of core/cpu/reduce.h.
TFMPI_API uint64_t tfmpi_fingerprint(const void* data, int64_t bytes);

// 1: the gradients of optimizer ops that this thread runs eagerly are already averages; 0: the
// kernels average them. Returns the previous value.
TFMPI_API int32_t tfmpi_set_averaged(int32_t averaged);

// From now on the optimizer ops of this process average nothing: the script uses ops of its own.
TFMPI_API void tfmpi_leave_averages_to_script(void);

// The optimizer ops: returns the name of op `index`, or null after the last one. Sets `gradient` to
// the name of its gradient input, and `sparse` to whether that is sparse.
TFMPI_API const char* tfmpi_apply_op(int32_t index, const char** gradient, int32_t* sparse);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TFMPI_GLUE_C_API_C_API_H_
