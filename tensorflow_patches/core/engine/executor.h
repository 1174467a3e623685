// Executes what the ranks have agreed on: resolves the requests of a response, moves the data and
// completes the requests.
//
// Communication thread.

#ifndef TFMPI_CORE_ENGINE_EXECUTOR_H_
#define TFMPI_CORE_ENGINE_EXECUTOR_H_

#include <string>
#include <vector>

#include "tensorflow_patches/core/engine/engine_state.h"
#include "tensorflow_patches/core/engine/pending_requests.h"
#include "tensorflow_patches/core/engine/request_notes.h"
#include "tensorflow_patches/core/recovery/recoverable_reduction.h"
#include "tensorflow_patches/core/reduction/fusion.h"

namespace tfmpi {

class Executor {
 public:
  // All outlive it. `recoverable`: null unless the ranks continue after deaths.
  Executor(EngineState* state, PendingRequests* pending, RecoverableReduction* recoverable);

  // Executes the responses of the list in order, until one fails the engine.
  void Execute(const ResponseList& response_list);
  // Delivers the result of a response that other ranks have executed and this one has not, and
  // completes its requests. Not ok: the response does not match what this rank has announced.
  Status Deliver(const Response& response, const Result& result);

  // For DrainGpus, AbortGpus and CheckGpus.
  Fusion* fusion() { return &fusion_; }

 private:
  void Execute(const Response& response);
  Status ResolveAll(const Response& response);
  Status Resolve(const ResponseItem& item, int contributors);
  Status Refusal(const std::string& what, const std::string& why) const;
  Status Transfer(const Response& response);
  void CompleteEntries(const Status& status);

  EngineState* const state_;
  PendingRequests* const pending_;
  RecoverableReduction* const recoverable_;
  Fusion fusion_;
  ResponseNotes response_notes_;
  // Of the current response, by item. If this rank does not take part in one, FusionEntry::request
  // is null, and so may be the NameTable's entry.
  std::vector<FusionEntry> fusion_entries_;
  std::vector<NameTable::Entry*> entries_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_ENGINE_EXECUTOR_H_
