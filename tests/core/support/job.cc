#include "tests/core/support/job.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/core/support/elements.h"

namespace tfmpi {
namespace {

size_t Components(const Job& job) { return job.count * WireElements(job.type); }

double Reduce(const Job& job, const std::vector<int>& ranks, size_t component) {
  double result = InputValue(job, ranks[0], component);
  for (size_t i = 1; i < ranks.size(); ++i) {
    const double value = InputValue(job, ranks[i], component);
    if (job.op == ReduceOp::kMin) {
      result = std::min(result, value);
    } else if (job.op == ReduceOp::kMax) {
      result = std::max(result, value);
    } else if (job.op == ReduceOp::kProduct) {
      result *= value;
    } else {
      result += value;
    }
  }
  return job.op == ReduceOp::kAverage ? result / static_cast<double>(ranks.size()) : result;
}

// 0 if the exact result has no more bits than the type.
double Tolerance(const Job& job, size_t ranks, double expected) {
  const bool power_of_two = (ranks & (ranks - 1)) == 0;
  if (job.op != ReduceOp::kAverage || power_of_two) return 0;
  // Half and bfloat16 are rounded once, by half a unit; the factor 1/n and the product cost a unit
  // of the wire type, which is negligible.
  const bool narrow = WireType(job.type) == DataType::kFloat32 && SizeOf(job.type) == 2;
  return std::fabs(expected) * Epsilon(job.type) * (narrow ? 0.501 : 1.5);
}

}  // namespace

std::vector<int> AllRanks(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

double InputValue(const Job& job, int rank, size_t component) {
  const size_t mixed =
      static_cast<size_t>(rank) * 5 + component * 3 + static_cast<size_t>(job.seed) * 7;
  // A product of eight 2s would overflow int8.
  if (job.op == ReduceOp::kProduct) return rank < 4 && mixed % 4 < 2 ? 2 : 1;
  return static_cast<double>(mixed % 16) - (IsUnsigned(job.type) ? 0 : 7);
}

std::vector<char> MakeInput(const Job& job, int rank) {
  std::vector<char> data(job.count * SizeOf(job.type));
  for (size_t i = 0; i < Components(job); ++i) {
    SetComponent(job.type, data.data(), i, InputValue(job, rank, i));
  }
  return data;
}

Request MakeRequest(const Job& job, const void* in, void* out) {
  Request request;
  request.name = job.name;
  request.signature.kind = OpKind::kAllreduce;
  request.signature.op = job.op;
  request.signature.dtype = job.type;
  request.signature.shape = {static_cast<int64_t>(job.count)};
  request.input = in;
  request.output = out;
  return request;
}

std::string CheckOutput(const Job& job, const std::vector<int>& contributors, const void* out) {
  for (size_t i = 0; i < Components(job); ++i) {
    const double expected = Reduce(job, contributors, i);
    const double found = GetComponent(job.type, out, i);
    if (std::fabs(found - expected) <= Tolerance(job, contributors.size(), expected)) continue;
    return "'" + job.name + "' (" + Name(job.op) + " of " + Name(job.type) + ", " +
           std::to_string(job.count) + " elements, " + std::to_string(contributors.size()) +
           " ranks): component " + std::to_string(i) + " is " + std::to_string(found) + ", not " +
           std::to_string(expected);
  }
  return "";
}

}  // namespace tfmpi
