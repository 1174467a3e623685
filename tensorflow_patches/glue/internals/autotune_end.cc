// Makes a tf.data iterator with autotuning end at once.
//
// Its destructor cancels the iterator's autotuning thread and waits for it. CancellationManager
// runs its callbacks before it sets its flag, and the callback only wakes the thread, which checks
// the flag. If the thread checks too early, as happens if both threads share a core, it sleeps
// again for the rest of its period (10 ms, doubled each time, up to 60 s). `fit` then ends that
// much later, and all ranks wait for the last one.
//
// So the thread gets its own manager, which a callback of the caller's manager cancels, and is
// woken once more after the flag is set.

#include <dlfcn.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/model.h"

namespace tfmpi {
namespace {

using tensorflow::CancellationManager;
using tensorflow::data::model::AutotuneAlgorithm;
using tensorflow::data::model::Model;
using tensorflow::data::model::RamBudgetManager;

using Loop = absl::Status (*)(Model*, AutotuneAlgorithm, std::function<int64_t()>, double,
                              std::optional<int64_t>, RamBudgetManager&, CancellationManager*);

// The definition in libtensorflow_framework, which ours hides.
Loop StockLoop() {
  static const auto function = reinterpret_cast<Loop>(dlsym(
      RTLD_NEXT,
      "_ZN10tensorflow4data5model5Model12OptimizeLoopENS1_17AutotuneAlgorithmESt8functionIFlvEE"
      "dSt8optionalIlERNS1_16RamBudgetManagerEPN3tsl19CancellationManagerE"));
  return function;
}

}  // namespace

}  // namespace tfmpi

namespace tensorflow {
namespace data {
namespace model {

// Runs on a thread of its own. The thread that cancels it waits for it, so the model outlives it.
__attribute__((visibility("default"))) absl::Status Model::OptimizeLoop(
    AutotuneAlgorithm algorithm, std::function<int64_t()> cpu_budget_func, double ram_budget_share,
    std::optional<int64_t> fixed_ram_budget, RamBudgetManager& ram_budget_manager,
    CancellationManager* cancellation_manager) {
  CancellationManager own;
  const CancellationToken token = cancellation_manager->get_cancellation_token();
  const bool registered = cancellation_manager->RegisterCallback(token, [this, &own] {
    own.StartCancel();
    mutex_lock lock(mu_);
    optimize_cond_var_.notify_all();
  });
  if (!registered) own.StartCancel();  // already cancelled: the stock loop detects it
  absl::Status status =
      tfmpi::StockLoop()(this, algorithm, std::move(cpu_budget_func), ram_budget_share,
                         fixed_ram_budget, ram_budget_manager, &own);
  cancellation_manager->DeregisterCallback(token);  // waits for the callback, if it runs
  return status;
}

}  // namespace model
}  // namespace data
}  // namespace tensorflow
