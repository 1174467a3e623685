// The process's one engine, between its start from Python and its end at exit.
//
// Start, Join and Leave: Python's main thread. Everything else: any thread. Before Start and after
// the end there is no engine; kernels made then are stock kernels, requests made then fail. Nor is
// there one in a child that this process forks: its kernels do what stock ones do, as on one rank,
// and it has nothing of the memory that ranks share.

#ifndef TFMPI_GLUE_RUNTIME_RUNTIME_H_
#define TFMPI_GLUE_RUNTIME_RUNTIME_H_

#include <memory>
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
  std::string transport_library;  // empty: one rank alone, without MPI
  Observation observation;        // of rank 0 counts
  std::string extras;             // names (extras.h)
};

// Starts the engine; fails with one line that says what to do.
Status StartRuntime(const RuntimeOptions& options);
// Meanwhile, on any thread: whom this rank waits for, and what they have to do; "" if nobody.
std::string StartWaitsFor();
// Engine::Join and Leave, and the end of what is observed: its files are written.
Status JoinRuntime();
void LeaveRuntime(const std::string& reason, Clock::duration grace);
// Of all ranks, on rank 0, once it has joined; see FormatStats. Else empty.
const std::string& StatsReport();
// Null unless started.
Engine* GetEngine();
// From now on optimizer ops do what stock ones do: the script averages, by ops of its own. Any
// thread.
void LeaveAveragesToScript();
bool AreAveragesLeftToScript();

// How tensorflow and the core name the same things. False for a dtype that cannot travel.
bool ToCoreType(tensorflow::DataType type, DataType* core);
Shape ToShape(const tensorflow::TensorShape& shape);
void* Data(const tensorflow::Tensor& tensor);
absl::Status ToAbsl(const Status& status);

}  // namespace tfmpi

#endif  // TFMPI_GLUE_RUNTIME_RUNTIME_H_
