#include "tensorflow_patches/glue/c_api/c_api.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tensorflow_patches/core/base/sizes.h"
#include "tensorflow_patches/core/bench/bench.h"
#include "tensorflow_patches/core/cpu/cores.h"
#include "tensorflow_patches/core/cpu/reduce.h"
#include "tensorflow_patches/core/device/driver.h"
#include "tensorflow_patches/core/observability/timeline.h"
#include "tensorflow_patches/glue/extras/kept_memory.h"
#include "tensorflow_patches/glue/extras/synchronous_update.h"
#include "tensorflow_patches/glue/internals/shared_fetches.h"
#include "tensorflow_patches/glue/internals/xla_seeds.h"
#include "tensorflow_patches/glue/kernels/apply_kernel.h"
#include "tensorflow_patches/glue/kernels/apply_ops.h"
#include "tensorflow_patches/glue/kernels/sparse_average.h"
#include "tensorflow_patches/glue/registration/interpose.h"
#include "tensorflow_patches/glue/runtime/extras.h"
#include "tensorflow_patches/glue/runtime/interpreter_end.h"
#include "tensorflow_patches/glue/runtime/request_group.h"
#include "tensorflow_patches/glue/runtime/runtime.h"
#include "tensorflow_patches/glue/variables/variable_names.h"
#include "tensorflow_patches/glue/xla/compiled_average.h"

namespace {

using tfmpi::Clock;
using tfmpi::Engine;
using tfmpi::GetEngine;
using tfmpi::Status;

Clock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

int32_t Report(const Status& status, char* error) {
  if (!status.ok()) std::snprintf(error, TFMPI_API_ERROR_BYTES, "%s", status.message().c_str());
  return static_cast<int32_t>(status.code());
}

}  // namespace

struct TfMpiOperation {
  std::mutex mutex;
  std::condition_variable ended_changed;
  bool ended = false;  // guarded by mutex, as is status
  Status status;
  tfmpi::Ticket ticket = 0;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  // Written on the communication thread, read once the operation has ended.
  std::unique_ptr<void, Free> gathered;
  int64_t rows = 0;

  void* Allocate(const std::vector<int64_t>& rows_by_rank, size_t row_bytes) {
    for (int64_t n : rows_by_rank) rows += n;
    gathered.reset(std::malloc(std::max<size_t>(1, static_cast<size_t>(rows) * row_bytes)));
    return gathered.get();
  }

  void End(const Status& result) {
    std::lock_guard<std::mutex> lock(mutex);
    status = result;
    ended = true;
    ended_changed.notify_all();  // under the lock, because the waiter then deletes this object
  }

  bool Wait(double seconds) {
    std::unique_lock<std::mutex> lock(mutex);
    return ended_changed.wait_for(lock, Seconds(seconds), [this] { return ended; });
  }
};

int32_t tfmpi_start(const TfMpiOptions* options, char* error) {
  tfmpi::RuntimeOptions runtime;
  runtime.transport_library = options->transport_library;
  runtime.plugin.roll_call.settings = options->settings;
  runtime.plugin.roll_call.timeout = Seconds(options->roll_call_timeout);
  runtime.engine.coordinator.fusion_threshold = static_cast<size_t>(options->fusion_threshold);
  runtime.engine.coordinator.stall_warning = Seconds(options->stall_warning);
  runtime.engine.coordinator.stall_timeout = Seconds(options->stall_timeout);
  runtime.engine.collective_timeout = Seconds(options->collective_timeout);
  runtime.engine.coordinator.deadlock_timeout = Seconds(options->deadlock_timeout);
  runtime.observation.timeline = options->timeline;
  runtime.observation.stats = options->stats != 0;
  runtime.extras = options->extras;
  runtime.engine.gpus.wanted = static_cast<tfmpi::DeviceTransport>(options->device_transport);
  runtime.engine.gpus.shares_gpu = options->shares_gpu != 0;
  runtime.engine.gpus.cray_gpus = options->cray_gpus != 0;
  runtime.engine.gpus.between.by_shape = options->ranks_per_node > 1;
  runtime.engine.gpus.between.rounds =
      static_cast<tfmpi::DataType>(options->wire) != tfmpi::DataType::kFloat32;
  runtime.engine.gpus.nccl_library = options->nccl_library;
  runtime.engine.shrink_on_fault = runtime.plugin.shrink_on_fault = options->shrink_on_fault != 0;
  runtime.plugin.ranks_per_node = options->ranks_per_node;
  runtime.plugin.node.wire = static_cast<tfmpi::DataType>(options->wire);
  tfmpi::SparseAverage::SetMode(static_cast<tfmpi::SparseMode>(options->sparse));
  // Not through Python: the communication thread must never wait for the interpreter's lock.
  runtime.engine.log = [](const std::string& line) {
    const tfmpi::Topology& topology = GetEngine()->topology();
    std::fprintf(stderr, "tensorflow.mpi rank %d/%d: %s\n", topology.rank, topology.size,
                 line.c_str());
  };
  const Status status = tfmpi::StartRuntime(runtime);
  if (status.ok() && tfmpi::EnabledExtras().kept_memory && GetEngine()->topology().size > 1) {
    tfmpi::KeepTensorMemory();
  }
  return Report(status, error);
}

void tfmpi_start_waits_for(char* out, int32_t bytes) {
  std::snprintf(out, static_cast<size_t>(bytes), "%s", tfmpi::WhomStartWaitsFor().c_str());
}

int32_t tfmpi_join(char* error) { return Report(tfmpi::JoinRuntime(), error); }

void tfmpi_leave(const char* reason, double seconds) {
  tfmpi::LeaveRuntime(reason, Seconds(seconds));
}

void tfmpi_limit_end(int32_t code, double seconds, const char* line) {
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(Seconds(seconds));
  tfmpi::LimitInterpreterEnd(code, limit, line);
}

const char* tfmpi_stats_report(void) { return tfmpi::StatsReport().c_str(); }

void tfmpi_op_sizes(int64_t out[2]) {
  out[0] = tfmpi::kOpBytes;
  out[1] = tfmpi::kOwnOpBytes;
}

void tfmpi_topology(int32_t out[6]) {
  const tfmpi::Topology& topology = GetEngine()->topology();
  out[0] = topology.rank;
  out[1] = topology.size;
  out[2] = topology.local_rank;
  out[3] = topology.local_size;
  out[4] = topology.nodes;
  out[5] = topology.cores;
}

int32_t tfmpi_quota_cores(void) { return tfmpi::QuotaCores(); }

uint64_t tfmpi_generation(void) {
  const Engine* const engine = GetEngine();
  return engine != nullptr ? engine->published().generation() : 0;
}

void tfmpi_set_needs_all(const char* why) {
  if (Engine* const engine = GetEngine()) engine->script_state()->SetNeedsAll(why);
}

const char* tfmpi_transport(void) {
  static const std::string* const description =
      new std::string(GetEngine()->transport_description());
  return description->c_str();
}

int32_t tfmpi_compiles(void) { return tfmpi::AveragesInCompiledSteps() ? 1 : 0; }

void tfmpi_stats(uint64_t out[8]) {
  const Engine* const engine = GetEngine();
  const tfmpi::EngineStats stats = engine != nullptr ? engine->stats() : tfmpi::EngineStats();
  out[0] = stats.completed;
  out[1] = stats.collectives;
  out[2] = stats.bytes;
  out[3] = static_cast<uint64_t>(tfmpi::RegistrationsSeen());
  out[4] = static_cast<uint64_t>(tfmpi::RegistrationsDecorated());
  out[5] = static_cast<uint64_t>(tfmpi::GradientsSubmitted());
  out[6] = static_cast<uint64_t>(tfmpi::ApplyKernel::Applied());
  out[7] = static_cast<uint64_t>(tfmpi::SynchronousUpdate::Updated());
}

void tfmpi_record_input(double seconds) {
  const tfmpi::TimePoint now = Clock::now();
  tfmpi::Record(tfmpi::Stage::kInput, {}, 0, 0, now - Seconds(seconds), now);
}

void tfmpi_seed_xla(uint32_t first) { tfmpi::SeedXla(first); }

TfMpiOperation* tfmpi_begin(const char* name, int32_t kind, int32_t reduce_op, int32_t dtype,
                            int32_t root, const int64_t* shape, int32_t dims, const void* in,
                            void* out, int32_t waits) {
  auto* const operation = new TfMpiOperation;
  tfmpi::Request request;
  request.name = name;
  request.signature.kind = static_cast<tfmpi::OpKind>(kind);
  request.signature.op = static_cast<tfmpi::ReduceOp>(reduce_op);
  request.signature.dtype = static_cast<tfmpi::DataType>(dtype);
  request.signature.root = root;
  request.signature.shape.assign(shape, shape + dims);
  request.purpose = waits < 0 ? tfmpi::Purpose::kBackground : tfmpi::Purpose::kScript;
  request.blocks = waits > 0;
  request.has_no_gradients = waits == 2;
  request.input = in;
  request.output = out;
  if (request.signature.kind == tfmpi::OpKind::kAllgather && dims > 0) {
    size_t row_bytes = tfmpi::SizeOf(request.signature.dtype);
    for (int32_t i = 1; i < dims; ++i) row_bytes *= static_cast<size_t>(shape[i]);
    request.allocate = [operation, row_bytes](const std::vector<int64_t>& rows) {
      return operation->Allocate(rows, row_bytes);
    };
  }
  request.done = [operation](const Status& status) { operation->End(status); };
  operation->ticket = GetEngine()->Submit(std::move(request));
  return operation;
}

int32_t tfmpi_wait(TfMpiOperation* operation, double seconds) {
  return operation->Wait(seconds) ? 1 : 0;
}

const void* tfmpi_gathered(TfMpiOperation* operation, int64_t* rows) {
  *rows = operation->rows;
  return operation->gathered.get();
}

int32_t tfmpi_end(TfMpiOperation* operation, char* error) {
  if (!operation->Wait(0)) {
    GetEngine()->Withdraw(operation->ticket);
    while (!operation->Wait(1)) {
    }
  }
  const int32_t code = Report(operation->status, error);
  delete operation;
  return code;
}

int32_t tfmpi_bench(const TfMpiBenchCase* bench_case, double* out, int32_t samples[3],
                    char* error) {
  tfmpi::BenchCase what;
  what.kind = static_cast<tfmpi::OpKind>(bench_case->kind);
  what.dtype = static_cast<tfmpi::DataType>(bench_case->dtype);
  what.count = static_cast<size_t>(bench_case->count);
  what.tensors = bench_case->tensors;
  what.direct_rounds = bench_case->direct_rounds;
  what.engine_rounds = bench_case->engine_rounds;
  what.min_samples = bench_case->min_samples;
  what.max_samples = bench_case->max_samples;
  what.budget = bench_case->budget;
  what.timeout = bench_case->timeout;
  tfmpi::BenchResult result;
  const Status status = tfmpi::RunBench(GetEngine(), what, &result);
  for (int way = 0; way < tfmpi::kNumBenchWays; ++way) {
    const std::vector<double>& seconds = result.seconds[way];
    samples[way] = static_cast<int32_t>(seconds.size());
    std::copy(seconds.begin(), seconds.end(), out + way * bench_case->max_samples);
  }
  return Report(status, error);
}

void tfmpi_post(const char* key) { GetEngine()->Post(key); }

int64_t tfmpi_posted(const char* key) { return GetEngine()->published().Posted(key); }

void tfmpi_posted_value(const char* key, int64_t number, char* out, int32_t bytes) {
  const std::string value = GetEngine()->published().PostedValue(key, number);
  std::snprintf(out, bytes, "%s", value.c_str());
}

void tfmpi_set_doing(const char* doing) {
  if (Engine* const engine = GetEngine()) engine->script_state()->SetDoing(doing);
}

int64_t* tfmpi_steps(void) {
  static_assert(sizeof(std::atomic<int64_t>) == sizeof(int64_t), "ctypes writes it");
  return reinterpret_cast<int64_t*>(GetEngine()->script_state()->steps());
}

void tfmpi_set_several_threads(int32_t several) {
  if (Engine* const engine = GetEngine()) engine->script_state()->SetSeveralThreads(several != 0);
}

uint64_t tfmpi_posts_heard(void) { return GetEngine()->published().posts_heard(); }

int32_t tfmpi_wait_for_file(const char* file, uint64_t posts, int32_t has_no_gradients,
                            char* error) {
  GetEngine()->script_state()->BeginFileWait(file, posts, has_no_gradients != 0);
  return Report(GetEngine()->failure(), error);
}

void tfmpi_file_is_there(void) {
  if (Engine* const engine = GetEngine()) engine->script_state()->EndFileWait();
}

uint64_t tfmpi_missed(void) {
  Engine* const engine = GetEngine();
  return engine != nullptr ? engine->script_state()->missed_gradients() : 0;
}

void tfmpi_caught_up(void) {
  if (Engine* const engine = GetEngine()) engine->script_state()->ClearMissedGradients();
}

void tfmpi_declare_variable(const char* container, const char* name, const char* scope) {
  tfmpi::VariableNames::Get().Declare(tfmpi::HandleKey(container, name, scope));
}

void tfmpi_variable_name(const char* container, const char* name, const char* scope, char* out,
                         int32_t bytes) {
  const std::string key = tfmpi::HandleKey(container, name, scope);
  std::snprintf(out, static_cast<size_t>(bytes), "%s",
                tfmpi::VariableNames::Get().Name(key).c_str());
}

void tfmpi_mark_synchronized(const char* container, const char* name, const char* scope) {
  tfmpi::VariableNames::Get().MarkSynchronized(tfmpi::HandleKey(container, name, scope));
}

void tfmpi_set_thread_scope(const char* scope) { tfmpi::VariableNames::SetThreadScope(scope); }

void tfmpi_set_scope(int64_t session, const char* scope) {
  tfmpi::VariableNames::Get().SetScope(session, scope);
}

void tfmpi_share_fetches(int32_t share) { tfmpi::ShareFetches(share != 0); }

int32_t tfmpi_is_lone_variable(const void* data) { return tfmpi::IsLoneVariable(data) ? 1 : 0; }

void tfmpi_gpus(char* out, int32_t bytes) {
  std::vector<std::pair<std::string, std::string>> gpus;
  std::string lines;
  if (tfmpi::ListGpus(&gpus).ok()) {
    for (const auto& [address, name] : gpus) {
      lines += (lines.empty() ? "" : "\n") + address + " " + name;
    }
  }
  std::snprintf(out, static_cast<size_t>(bytes), "%s", lines.c_str());
}

int32_t tfmpi_gpus_staged(void) { return GetEngine()->published().gpus_staged(); }

uint64_t tfmpi_fingerprint(const void* data, int64_t bytes) {
  return tfmpi::Fingerprint(data, static_cast<size_t>(bytes));
}

int32_t tfmpi_set_averaged(int32_t averaged) {
  return tfmpi::ApplyKernel::SetThreadAveraged(averaged != 0) ? 1 : 0;
}

void tfmpi_leave_averages_to_script(void) { tfmpi::LeaveAveragesToScript(); }

const char* tfmpi_apply_op(int32_t index, const char** gradient, int32_t* sparse) {
  const auto& ops = tfmpi::AllApplyOps();
  if (index < 0 || static_cast<size_t>(index) >= ops.size()) return nullptr;
  *gradient = ops[index].gradient.data();
  *sparse = ops[index].sparse ? 1 : 0;
  return ops[index].name.data();
}
