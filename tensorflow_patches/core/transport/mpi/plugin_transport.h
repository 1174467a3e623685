// Loads a transport library and wraps its C interface as a Transport.

#ifndef TFMPI_CORE_TRANSPORT_MPI_PLUGIN_TRANSPORT_H_
#define TFMPI_CORE_TRANSPORT_MPI_PLUGIN_TRANSPORT_H_

#include <memory>
#include <string>

#include "tensorflow_patches/core/transport/node_transport.h"
#include "tensorflow_patches/core/transport/roll_call.h"
#include "tensorflow_patches/core/transport/transport.h"

struct TfMpiTransport;  // plugin.h

namespace tfmpi {

struct PluginOptions {
  // 0: the actual nodes; otherwise this many consecutive ranks count as a node.
  int ranks_per_node = 0;
  NodeOptions node;
  // The ranks should continue after deaths: kFailedPrecondition if MPI does not support it.
  bool shrink_on_fault = false;
  RollCallOptions roll_call;
};

// Opens `path`, checks its ABI and joins the group (MPI_Init). Call it on the process's main
// thread. MPI's own blocking calls have no deadline: `options.roll_call.report_wait` is called with
// what this rank waits for, so that another thread can watch it. The library is never closed: an
// initialized MPI cannot be unloaded.
Status LoadPluginTransport(const std::string& path, const PluginOptions& options,
                           std::unique_ptr<Transport>* transport);
// The same with a library that is already open.
Status StartPluginTransport(const TfMpiTransport* plugin, const PluginOptions& options,
                            std::unique_ptr<Transport>* transport);

}  // namespace tfmpi

#endif  // TFMPI_CORE_TRANSPORT_MPI_PLUGIN_TRANSPORT_H_
