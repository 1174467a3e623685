#include "tensorflow_patches/core/request/request.h"

#include <algorithm>
#include <numeric>

namespace tfmpi {

std::string Describe(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::string Describe(const Signature& signature) {
  std::string text = Name(signature.kind);
  if (signature.kind == OpKind::kBarrier) return text;
  if (signature.kind == OpKind::kAllreduce) text += std::string(" ") + Name(signature.op);
  text += std::string(" of ") + Name(signature.dtype) + " " + Describe(signature.shape);
  if (signature.kind == OpKind::kBroadcast) text += " from rank " + std::to_string(signature.root);
  if (signature.row_limit >= 0)
    text += ", at most " + std::to_string(signature.row_limit) + " rows in total";
  if (signature.every_row) text += ", including duplicates";
  if (signature.on_gpu) text += " on a GPU";
  if (signature.members != nullptr) {
    text += " among ranks";
    for (int32_t rank : *signature.members) text += " " + std::to_string(rank);
  }
  return text;
}

std::string DescribeDifference(const std::string& name, int first_rank, const Signature& first,
                               int second_rank, const Signature& second) {
  const auto sentence = [&](const std::string& what, const std::string& one,
                            const std::string& other) {
    return "'" + what + "': rank " + std::to_string(first_rank) + " has " + one + ", rank " +
           std::to_string(second_rank) + " has " + other;
  };
  // Mentioned only if the ranks differ in it, because nearly every gradient has a weight.
  const bool names_weight = first.weighted != second.weighted;
  const auto describe = [&](const Signature& signature) {
    const char* const weight = signature.weighted ? ", weighted" : ", not weighted";
    return Describe(signature) + (names_weight ? weight : "");
  };
  if (first.parts == nullptr || second.parts == nullptr || first.parts == second.parts) {
    return sentence(name, describe(first), describe(second));
  }
  const Parts& a = *first.parts;
  const Parts& b = *second.parts;
  const auto part = [&](const Signature& signature, size_t i) {
    Signature one = signature;
    one.shape = signature.parts->shapes[i];
    return describe(one);
  };
  for (size_t i = 0; i < a.names.size() && i < b.names.size(); ++i) {
    if (a.names[i] != b.names[i]) {
      return sentence(name, "'" + a.names[i] + "'", "'" + b.names[i] + "' in its place");
    }
    if (part(first, i) != part(second, i)) {
      return sentence(a.names[i], part(first, i), part(second, i));
    }
  }
  return sentence(name, std::to_string(a.names.size()) + " tensors",
                  std::to_string(b.names.size()));
}

bool IsMember(const Signature& signature, int rank) {
  return signature.members == nullptr ||
         std::binary_search(signature.members->begin(), signature.members->end(), rank);
}

Signature WithoutRows(Signature signature) {
  if (GathersRows(signature.kind) && !signature.shape.empty()) signature.shape[0] = 0;
  return signature;
}

bool EqualWithoutRows(const Signature& a, const Signature& b) {
  // Usually without the copies that WithoutRows makes.
  return GathersRows(a.kind) ? WithoutRows(a) == WithoutRows(b) : a == b;
}

size_t RowBytes(const Signature& signature) {
  const Shape row(signature.shape.begin() + 1, signature.shape.end());
  return static_cast<size_t>(NumElements(row)) * SizeOf(signature.dtype) +
         static_cast<size_t>(signature.extra_row_bytes);
}

bool IsBeyondLimit(const Signature& signature, const std::vector<int64_t>& rows) {
  const int64_t limit = signature.kind == OpKind::kSparseAllgather ? signature.row_limit : -1;
  return limit >= 0 && std::accumulate(rows.begin(), rows.end(), int64_t{0}) > limit;
}

Status Validate(const Signature& signature) {
  if (GathersRows(signature.kind) && signature.shape.empty()) {
    return Status(Code::kInvalidArgument,
                  std::string(Name(signature.kind)) + " needs a tensor, not a number");
  }
  if (signature.kind == OpKind::kSparseAllgather && RowBytes(signature) == 0) {
    return Status(Code::kInvalidArgument,
                  std::string(Name(signature.kind)) + " needs rows with at least one element");
  }
  if (signature.on_gpu && GathersRows(signature.kind)) {
    return Status(Code::kInvalidArgument,
                  std::string(Name(signature.kind)) + " is not supported for GPU memory");
  }
  if (signature.members != nullptr && (signature.on_gpu || signature.members->empty())) {
    return Status(Code::kInvalidArgument,
                  "an operation of a subset of ranks needs at least one rank and host memory");
  }
  if (signature.kind == OpKind::kBroadcast && !IsMember(signature, signature.root)) {
    return Status(Code::kInvalidArgument, Describe(signature) + ": that rank is not a member");
  }
  if (signature.kind != OpKind::kAllreduce) return Status();
  const bool sums = signature.op == ReduceOp::kAverage || signature.op == ReduceOp::kSum ||
                    signature.op == ReduceOp::kPlainSum;
  if (signature.op == ReduceOp::kAverage && !IsFloating(signature.dtype)) {
    return Status(Code::kInvalidArgument, std::string("the average of ") + Name(signature.dtype) +
                                              " values need not be an integer; use op='sum'");
  }
  if (signature.dtype == DataType::kBool || (IsComplex(signature.dtype) && !sums)) {
    return Status(Code::kInvalidArgument, std::string("allreduce ") + Name(signature.op) +
                                              " is not defined for " + Name(signature.dtype));
  }
  return Status();
}

}  // namespace tfmpi
