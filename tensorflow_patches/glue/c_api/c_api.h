// What Python's ctypes sees (python/_src/runtime/c_api.py). C types only; nothing throws across it.
//
// Strings are UTF-8; `error` is a buffer of TFMPI_API_ERROR_BYTES, written when a call fails. Codes
// are core/base/status.h's Code. All calls may block only as far as they say.

#ifndef TFMPI_GLUE_C_API_C_API_H_
#define TFMPI_GLUE_C_API_C_API_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TFMPI_API_ERROR_BYTES 4096
#define TFMPI_API __attribute__((visibility("default")))

struct TfMpiOptions {
  const char* transport_library;  // empty: one rank alone, without MPI
  const char* settings;           // roll_call.h's: lines that must be the same on all ranks
  double roll_call_timeout;       // seconds
  int64_t fusion_threshold;       // bytes
  double stall_warning;           // seconds; 0: never
  double stall_timeout;           // seconds; 0: never
  double collective_timeout;      // seconds
  double deadlock_timeout;        // seconds; 0: never
  const char* timeline;           // rank 0's file; empty: none
  int32_t stats;                  // 1: counts, see tfmpi_stats_report
  int32_t ranks_per_node;         // 0: as the launcher has it
  int32_t wire;                   // DataType in which float32 sums travel between nodes
  int32_t sparse;                 // sparse_average.h's SparseMode
  const char* extras;             // names, with commas between them; see extras.h
  int32_t device_transport;       // core/device/choice.h's DeviceTransport
  int32_t shares_gpu;             // 1: NCCL may have several ranks on one GPU
  int32_t cray_gpus;              // 1: Cray's MPI was told to take memory of GPUs
  const char* nccl_library;       // a path, or a name for the linker
  int32_t shrink_on_fault;        // 1: the ranks go on without those that die
};

// Python's main thread, once. Waits for all ranks to start.
TFMPI_API int32_t tfmpi_start(const struct TfMpiOptions* options, char* error);
// Any thread, meanwhile: writes whom it waits for, and for what, cut to `bytes`; "" if nobody.
TFMPI_API void tfmpi_start_waits_for(char* out, int32_t bytes);
// Waits until every rank has joined. Nothing may be submitted after it.
TFMPI_API int32_t tfmpi_join(char* error);
// Tells the other ranks that this one stops; waits at most `seconds`.
TFMPI_API void tfmpi_leave(const char* reason, double seconds);
// runtime/interpreter_end.h's LimitInterpreterEnd, after one of the two.
TFMPI_API void tfmpi_limit_end(int32_t code, double seconds, const char* line);

// core/base/sizes.h: kOpBytes, kOwnOpBytes
TFMPI_API void tfmpi_op_sizes(int64_t out[2]);
// rank, size, local_rank, local_size, nodes, cores that the ranks of this node may use together
TFMPI_API void tfmpi_topology(int32_t out[6]);
// core/cpu/cores.h's QuotaCores. Any thread.
TFMPI_API int32_t tfmpi_quota_cores(void);
// How often the ranks have gone on without others: what tfmpi_topology says holds since then. Any
// thread.
TFMPI_API uint64_t tfmpi_generation(void);
// What this rank's script does and what cannot go on with fewer ranks: if one dies, all end with
// this reason. "": nothing such.
TFMPI_API void tfmpi_set_needs_all(const char* why);
// Of the transport; lives as long as the process.
TFMPI_API const char* tfmpi_transport(void);
// 1 if gradients are averaged in compiled steps, 0 if those are errors
TFMPI_API int32_t tfmpi_compiles(void);
// tensors that ended well, collectives, bytes, registrations seen, registrations decorated,
// gradients submitted by kernels, optimizer ops run, of these as a SynchronousUpdate
TFMPI_API void tfmpi_stats(uint64_t out[8]);

// After tfmpi_join, on rank 0, if it asked for `stats`: core/observability/stats.h's FormatStats,
// else "". Lives as long as the process.
TFMPI_API const char* tfmpi_stats_report(void);

// For the timeline: the caller has waited for `seconds` for a batch of input, which is there now.
// Any thread.
TFMPI_API void tfmpi_record_input(double seconds);

// Starts a collective on memory that the caller keeps until tfmpi_end. For allgather `out` is null.
// The result is freed by tfmpi_end. Returns at once. `waits`: 1: this thread is the only one of the
// script that uses the library, and waits for this; 2: so, and has no gradients to give meanwhile;
// -1: nobody waits for it, and the ranks can do without one that has nothing to give.
struct TfMpiOperation;
TFMPI_API struct TfMpiOperation* tfmpi_begin(const char* name, int32_t kind, int32_t reduce_op,
                                             int32_t dtype, int32_t root, const int64_t* shape,
                                             int32_t dims, const void* in, void* out,
                                             int32_t waits);
// 1 when it has ended, 0 after `seconds`.
TFMPI_API int32_t tfmpi_wait(struct TfMpiOperation* operation, double seconds);
// Allgather that has ended well: its data, and the first dimension in all. Valid until tfmpi_end.
TFMPI_API const void* tfmpi_gathered(struct TfMpiOperation* operation, int64_t* rows);
// Its code. An operation that has not ended is withdrawn, and waited for.
TFMPI_API int32_t tfmpi_end(struct TfMpiOperation* operation, char* error);

// One measurement of core/bench/bench.h: fields as in its BenchCase. All ranks, Python's main
// thread.
struct TfMpiBenchCase {
  int32_t kind, dtype;
  int64_t count;
  int32_t tensors, direct_rounds, engine_rounds, least_samples, most_samples;
  double budget, timeout;  // seconds
};
// Seconds of sample i of way w (BenchWay) go to out[w * most_samples + i], how many there are to
// samples[w]. Blocks until all are taken, or one takes longer than `timeout`.
TFMPI_API int32_t tfmpi_bench(const struct TfMpiBenchCase* bench_case, double* out,
                              int32_t samples[3], char* error);

// Rank 0 only, elsewhere it does nothing: tells all ranks, without waiting for them, that `key` has
// happened once more, and what stands in it after a line break.
TFMPI_API void tfmpi_post(const char* key);
// How often this rank has been told so; on rank 0, how often it posted.
TFMPI_API int64_t tfmpi_posted(const char* key);
// Writes what the `number`-th post of this key, from 0, said after a line break, cut to `bytes`.
TFMPI_API void tfmpi_posted_value(const char* key, int64_t number, char* out, int32_t bytes);

// What the script does, for the other ranks' messages; see core/engine/script_state.h. The thread
// that does it.
TFMPI_API void tfmpi_set_doing(const char* doing);
// How many steps of that have been done, to be written by that thread. Lives as long as the
// process.
TFMPI_API int64_t* tfmpi_steps(void);
TFMPI_API void tfmpi_set_several_threads(int32_t several);
// How many posts, of any key, this rank has been told of.
TFMPI_API uint64_t tfmpi_posts_heard(void);
// The only thread that uses the library waits for a file of rank 0, though it has looked at so many
// posts. To be called again after each look. A code: whether the group has failed.
TFMPI_API int32_t tfmpi_wait_for_file(const char* file, uint64_t posts, int32_t has_no_gradients,
                                      char* error);
TFMPI_API void tfmpi_file_is_there(void);
// How many gradients the others have averaged without this rank while it waited; and that its
// variables are theirs again.
TFMPI_API uint64_t tfmpi_missed(void);
TFMPI_API void tfmpi_caught_up(void);

// Names of variables; see variable_names.h.
TFMPI_API void tfmpi_declare_variable(const char* container, const char* name, const char* scope);
// Declares the variable and writes the name that it has on every rank to `out`, cut to `bytes`.
TFMPI_API void tfmpi_variable_name(const char* container, const char* name, const char* scope,
                                   char* out, int32_t bytes);
TFMPI_API void tfmpi_mark_synchronized(const char* container, const char* name, const char* scope);
// The scope of the session whose kernels this thread makes from now on; empty: of none.
TFMPI_API void tfmpi_set_thread_scope(const char* scope);
TFMPI_API void tfmpi_set_scope(int64_t session, const char* scope);

// Fetches of variables that are not copied; see shared_fetches.h. `data`: of a fetched array.
TFMPI_API void tfmpi_share_fetches(int32_t share);
TFMPI_API int32_t tfmpi_is_lone_variable(const void* data);

// The GPUs that this process sees, in order: "ADDRESS NAME" with line breaks between; "" where
// there is no driver. Makes no context.
TFMPI_API void tfmpi_gpus(char* out, int32_t bytes);
// 1: what lies on GPUs is averaged by way of the hosts; 0: it is not; -1: the ranks have not chosen
// yet, as they do when they first average something there. Any thread.
TFMPI_API int32_t tfmpi_gpus_staged(void);

// core/cpu/reduce.h's Fingerprint. Any thread.
TFMPI_API uint64_t tfmpi_fingerprint(const void* data, int64_t bytes);

// 1: the gradients of optimizer ops that this thread runs eagerly are averages already; 0: the
// kernels average them. Returns what it was before.
TFMPI_API int32_t tfmpi_set_averaged(int32_t averaged);

// Optimizer ops average nothing from now on, in this process: the script does, by ops of its own.
TFMPI_API void tfmpi_leave_averages_to_script(void);

// The optimizer ops: name of op `index`, or null beyond the last; its gradient input; whether
// sparse.
TFMPI_API const char* tfmpi_apply_op(int32_t index, const char** gradient, int32_t* sparse);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TFMPI_GLUE_C_API_C_API_H_
