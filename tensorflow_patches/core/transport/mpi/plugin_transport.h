// Loads a transport library and wraps its C interface as a Transport.

#ifndef TFMPI_CORE_TRANSPORT_MPI_PLUGIN_TRANSPORT_H_
#define TFMPI_CORE_TRANSPORT_MPI_PLUGIN_TRANSPORT_H_

#include <memory>
#include <string>

#include "tensorflow_patches/core/transport/node_transport.h"
#include "tensorflow_patches/core/transport/roll_call.h"
#include "tensorflow_patches/core/transport/transport.h"

namespace tfmpi {

struct PluginOptions {
  // 0: the nodes are what the launcher made them; else so many ranks each, in their order.
  int ranks_per_node = 0;
  NodeOptions node;
  // The ranks are to go on without those that die: where MPI cannot, kFailedPrecondition.
  bool shrink_on_fault = false;
  RollCallOptions roll_call;
};

// Opens `path`, checks its ABI and joins the group (MPI_Init). Call on the process's main thread.
// Where MPI itself blocks, it blocks for ever: what this rank waits for is told to
// `options.roll_call.waits`, for somebody else to look at.
// The library is never closed: an MPI that was initialised cannot be unloaded.
Status LoadPluginTransport(const std::string& path, const PluginOptions& options,
                           std::unique_ptr<Transport>* transport);

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_MPI_PLUGIN_TRANSPORT_H_
