// The process's only engine, which Python starts and ends.
//
// StartRuntime: Python's main thread. JoinRuntime and StatsReport: that thread, or one that calls
// os._exit(0). LeaveRuntime: also a training thread that has failed. Everything else: any thread.
// Before StartRuntime there is no engine, and kernels are stock kernels; after JoinRuntime or
// LeaveRuntime requests fail. A child that this process forks has no engine either, nor the shared
// memory: decorated kernels act like stock ones there, and collectives fail.

#ifndef TFMPI_GLUE_RUNTIME_RUNTIME_H_
#define TFMPI_GLUE_RUNTIME_RUNTIME_H_

#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow_patches/core/engine/engine.h"
#include "tensorflow_patches/core/observability/observe.h"
#include "tensorflow_patches/core/transport/mpi/plugin_transport.h"

namespace tfmpi {

struct RuntimeOptions {
  EngineOptions engine;
  PluginOptions plugin;
  std::string transport_library;  // empty: a single rank, without MPI
  Observation observation;        // rank 0's is used
  std::string extras;             // names (extras.h)
};

// Starts the engine; on failure the message is one line that says what to do.
Status StartRuntime(const RuntimeOptions& options);
// During StartRuntime: which ranks it waits for, and what they must do; "" if it does not wait.
std::string WhomStartWaitsFor();
// Engine::Join and Leave. If all ranks have joined, rank 0 writes the timeline of all; else each
// writes its own.
Status JoinRuntime();
void LeaveRuntime(const std::string& reason, Clock::duration grace);
// On rank 0, after it has joined: the statistics of all ranks; see FormatStats. Otherwise empty.
const std::string& StatsReport();
// Null before StartRuntime and in a forked child.
Engine* GetEngine();
// The error of an op that needs an engine.
absl::Status AveragingOffError();
// From now on optimizer ops act like stock ones, because the script averages with its own ops.
void LeaveAveragesToScript();
bool AreAveragesLeftToScript();

// Conversions between TensorFlow's types and core/'s. ToCoreType: false for an unsupported dtype.
bool ToCoreType(tensorflow::DataType type, DataType* core);
Shape ToShape(const tensorflow::TensorShape& shape);
void* Data(const tensorflow::Tensor& tensor);
absl::Status ToAbsl(const Status& status);

}  // namespace tfmpi

#endif  // TFMPI_GLUE_RUNTIME_RUNTIME_H_
