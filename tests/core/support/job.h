// One reduction of a test: what each rank hands in, and a check of what comes out.
//
// Inputs are small whole numbers that differ by rank, element and seed, so that sums are exact in
// every type and in any order, and a rank that gets its own input back fails the check. Shared by
// the tests with ranks as threads and by tests/mpi; it knows no googletest.

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
// Without `done`. `in` and `out` stay the caller's and may be equal.
Request MakeRequest(const Job& job, const void* in, void* out);
// Empty if `out` holds the reduction over the ranks `contributors`, else what is wrong with it.
std::string CheckOutput(const Job& job, const std::vector<int>& contributors, const void* out);

}  // namespace tfmpi

#endif  // TFMPI_TESTS_CORE_SUPPORT_JOB_H_
