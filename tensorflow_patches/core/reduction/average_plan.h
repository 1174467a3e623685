// How the tensors of one average are grouped into requests: small ones of one type share a request.
//
// Created once per set of shapes and used in every step; immutable, so any thread may use it.

#ifndef TFMPI_CORE_REDUCTION_AVERAGE_PLAN_H_
#define TFMPI_CORE_REDUCTION_AVERAGE_PLAN_H_

#include <string>
#include <vector>

#include "tensorflow_patches/core/request/request.h"

namespace tfmpi {

class AveragePlan {
 public:
  // `names`, `dtypes` and `shapes` by tensor; the names are distinct. A request of several tensors
  // has at most `threshold` bytes on the wire, padding included.
  AveragePlan(const std::vector<std::string>& names, const std::vector<DataType>& dtypes,
              std::vector<Shape> shapes, size_t threshold);

  const std::vector<Shape>& shapes() const { return shapes_; }

  // One request.
  struct Entry {
    std::string name;
    Signature signature;
    std::vector<size_t> tensors;  // their indices
    std::vector<size_t> starts;   // of several tensors: where each begins, in elements
  };
  const std::vector<Entry>& entries() const { return entries_; }

  // The weight of this rank's tensors: a number, or its address in GPU memory.
  struct Weight {
    double value = 1;
    const void* on_gpu = nullptr;
  };

  // The requests of one step, without `done`. `buffers`, by tensor: Request::input and output.
  // `outputs`, by entry: Request::output of an entry of several tensors; null if `buffers` has
  // their outputs. `fingerprints`: whether to compute Request::fingerprint.
  std::vector<Request> Requests(const std::vector<Request::Buffers>& buffers,
                                const std::vector<void*>& outputs, const Weight& weight,
                                bool fingerprints) const;

 private:
  void Finish(const std::vector<std::string>& names, Entry entry);

  std::vector<Shape> shapes_;
  std::vector<Entry> entries_;
};

}  // namespace tfmpi

#endif  // TFMPI_CORE_REDUCTION_AVERAGE_PLAN_H_
