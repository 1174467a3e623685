// One reduction of a test: the input of each rank, and a check of the result.
//
// Inputs are small integers that differ by rank, element and seed, so that sums are exact in every
// type and in any order, and a rank that gets its own input back fails the check. Used by tests
// with ranks as threads and by tests/mpi; does not depend on googletest.

#ifndef TFMPI_TESTS_CORE_SUPPORT_JOB_H_
#define TFMPI_TESTS_CORE_SUPPORT_JOB_H_

#include <string>
#include <vector>

#include "tensorflow_patches/core/request/request.h"

namespace tfmpi {

struct Job {
  std::string name;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kAverage;
  size_t count = 1;
  int seed = 0;
};

// 0, 1, .. size - 1.
std::vector<int> AllRanks(int size);

double InputValue(const Job& job, int rank, size_t component);
std::vector<char> MakeInput(const Job& job, int rank);
// Without `done`. `in` and `out` belong to the caller and may be equal.
Request MakeRequest(const Job& job, const void* in, void* out);
// Empty if `out` contains the reduction over the ranks `contributors`, else what is wrong.
std::string CheckOutput(const Job& job, const std::vector<int>& contributors, const void* out);

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_SUPPORT_JOB_H_
