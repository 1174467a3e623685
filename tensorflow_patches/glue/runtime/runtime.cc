#include "tensorflow_patches/glue/runtime/runtime.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "tensorflow_patches/core/transport/local.h"
#include "tensorflow_patches/glue/runtime/extras.h"

namespace tfmpi {
namespace {

// Set once, and null again in a forked child. Never destroyed: kernels may run during exit.
std::atomic<Engine*> g_engine{nullptr};
std::atomic<bool> g_is_forked_child{false};
std::atomic<bool> g_left_to_script{false};

// What WhomStartWaitsFor returns. Any thread.
struct Waits {
  std::mutex mutex;
  std::string whom;  // guarded by mutex
};

Waits& GetWaits() {
  static Waits* const waits = new Waits;
  return *waits;
}

// What StartRuntime keeps until the process ends. Unguarded: only the threads that runtime.h allows
// to start, join or leave use it.
struct State {
  EngineOptions options;
  Observation observation;
  std::string stats_report;
};

State& GetState() {
  static State* const state = new State;
  return *state;
}

void Log(const std::string& line) {
  const EngineOptions& options = GetState().options;
  if (options.log) options.log(line);
}

// EngineOptions::at_end. Returns false if the transport is unusable afterwards.
bool GatherObservation(Transport* transport) {
  State& state = GetState();
  if (!state.observation.stats && state.observation.timeline.empty()) return true;
  const RankStats own = GetEngine()->FinishStats();
  std::vector<RankStats> all;
  const Status status = Gather(transport, state.observation, own, &all);
  if (!all.empty()) state.stats_report = FormatStats(all, GetEngine()->last_ready());
  if (!status.ok()) Log(status.message());
  return status.code() != Code::kDeadlineExceeded && status.code() != Code::kUnavailable;
}

// After an end with an error, when rank 0 may not have the events of all ranks.
void WriteOwn() {
  const State& state = GetState();
  if (state.observation.timeline.empty()) return;
  std::string path;
  const Status status = WriteOwnTimeline(GetEngine()->topology(), state.observation, &path);
  Log(status.ok() ? "this rank ended with an error; its own timeline is in " + path
                  : status.message());
}

// There is no rail, the only link that compresses, if nodes have different numbers of ranks.
bool LacksRail(Transport* transport) {
  return transport->topology().nodes > 1 && transport->rail() == nullptr;
}

}  // namespace

Status JoinRuntime() {
  const Status status = GetEngine()->Join();
  if (!status.ok()) WriteOwn();
  return status;
}

void LeaveRuntime(const std::string& reason, Clock::duration grace) {
  GetEngine()->Leave(reason, grace);
  WriteOwn();
}

std::string WhomStartWaitsFor() {
  std::lock_guard<std::mutex> lock(GetWaits().mutex);
  return GetWaits().whom;
}

const std::string& StatsReport() { return GetState().stats_report; }

Status StartRuntime(const RuntimeOptions& options) {
  if (g_engine.load() != nullptr) {
    return Status(Code::kInternal,
                  "StartRuntime was called twice: this is a bug; please report it");
  }
  Extras extras;
  if (!ParseExtras(options.extras, &extras)) {
    return Status(Code::kInternal,
                  "libtensorflow_mpi.so does not know all extras in '" + options.extras +
                      "': it is from another build than the wheel's Python files. Install the "
                      "wheel again");
  }
  // A divided update takes several requests, between which each rank has updated only its own rows,
  // so it could not be repeated after a death.
  if (options.engine.shrink_on_fault) extras.divided_updates = false;
  SetExtras(extras);
  std::unique_ptr<Transport> transport;
  if (options.transport_library.empty()) {
    transport = LocalGroup(1).CreateTransport(0);
  } else {
    PluginOptions plugin = options.plugin;
    plugin.node.stores = extras.streaming_stores ? Stores::kAuto : Stores::kCached;
    plugin.roll_call.report_wait = [](const std::string& whom) {
      std::lock_guard<std::mutex> lock(GetWaits().mutex);
      GetWaits().whom = whom;
    };
    TFMPI_RETURN_IF_NOT_OK(LoadPluginTransport(options.transport_library, plugin, &transport));
  }
  State& state = GetState();
  state.options = options.engine;
  state.options.shrink_on_fault =
      options.engine.shrink_on_fault && !options.transport_library.empty();
  state.options.response_bypass = extras.response_bypass;
  state.observation = options.observation;
  TFMPI_RETURN_IF_NOT_OK(StartObserving(transport.get(), &state.observation));
  state.options.stats = state.observation.stats;
  state.options.at_end = GatherObservation;
  const bool compression_is_unused =
      options.plugin.node.wire != DataType::kFloat32 && LacksRail(transport.get());
  g_engine = new Engine(std::move(transport), state.options);
  pthread_atfork(nullptr, nullptr, [] {
    g_is_forked_child = true;
    g_engine = nullptr;
  });
  if (compression_is_unused && GetEngine()->topology().rank == 0) {
    Log("TF_MPI_COMPRESSION has no effect, because the nodes have different numbers of ranks: "
        "start the same number on each");
  }
  return Status();
}

Engine* GetEngine() { return g_engine.load(std::memory_order_acquire); }

absl::Status AveragingOffError() {
  if (g_is_forked_child) {
    return absl::FailedPreconditionError(
        "this is a forked child process, which is not a rank; call tf.mpi collectives only in the "
        "process that the launcher started");
  }
  return absl::FailedPreconditionError(
      "averaging is off (TF_MPI_ENABLE), so this op cannot run; start the script with a launcher "
      "such as mpirun, without TF_MPI_ENABLE=0");
}

void LeaveAveragesToScript() { g_left_to_script = true; }
bool AreAveragesLeftToScript() { return g_left_to_script.load(std::memory_order_relaxed); }

bool ToCoreType(tensorflow::DataType type, DataType* core) {
  // In the order of DataType.
  static constexpr tensorflow::DataType kTypes[] = {
      tensorflow::DT_HALF,   tensorflow::DT_BFLOAT16,  tensorflow::DT_FLOAT,
      tensorflow::DT_DOUBLE, tensorflow::DT_COMPLEX64, tensorflow::DT_COMPLEX128,
      tensorflow::DT_INT8,   tensorflow::DT_INT16,     tensorflow::DT_INT32,
      tensorflow::DT_INT64,  tensorflow::DT_UINT8,     tensorflow::DT_UINT16,
      tensorflow::DT_UINT32, tensorflow::DT_UINT64,    tensorflow::DT_BOOL};
  static_assert(std::size(kTypes) == kNumDataTypes);
  const auto* const found = std::find(std::begin(kTypes), std::end(kTypes), type);
  if (found == std::end(kTypes)) return false;
  *core = static_cast<DataType>(found - kTypes);
  return true;
}

Shape ToShape(const tensorflow::TensorShape& shape) {
  Shape dims;
  for (int i = 0; i < shape.dims(); ++i) dims.push_back(shape.dim_size(i));
  return dims;
}

void* Data(const tensorflow::Tensor& tensor) {
  return const_cast<char*>(tensor.tensor_data().data());
}

absl::Status ToAbsl(const Status& status) {
  // In the order of Code.
  static constexpr absl::StatusCode kCodes[] = {
      absl::StatusCode::kOk,
      absl::StatusCode::kCancelled,
      absl::StatusCode::kInvalidArgument,
      absl::StatusCode::kFailedPrecondition,
      absl::StatusCode::kDeadlineExceeded,
      absl::StatusCode::kUnavailable,
      absl::StatusCode::kInternal,
  };
  static_assert(std::size(kCodes) == kNumCodes);
  return absl::Status(kCodes[static_cast<size_t>(status.code())], status.message());
}

}  // namespace tfmpi
