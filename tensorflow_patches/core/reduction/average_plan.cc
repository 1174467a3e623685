#include "tensorflow_patches/core/reduction/average_plan.h"

#include <map>
#include <utility>

#include "tensorflow_patches/core/base/sizes.h"
#include "tensorflow_patches/core/cpu/reduce.h"

namespace tfmpi {
namespace {

size_t PaddedElements(DataType type, const Shape& shape) {
  return tfmpi::PaddedElements(type, static_cast<size_t>(NumElements(shape)));
}

uint64_t FingerprintOf(DataType type, const Shape& shape, const void* data) {
  return Fingerprint(data, static_cast<size_t>(NumElements(shape)) * SizeOf(type));
}

}  // namespace

AveragePlan::AveragePlan(const std::vector<std::string>& names, const std::vector<DataType>& dtypes,
                         std::vector<Shape> shapes, size_t threshold)
    : shapes_(std::move(shapes)) {
  struct OpenGroup {
    Entry entry;
    size_t bytes = 0;
  };
  std::map<DataType, OpenGroup> open;
  for (size_t i = 0; i < names.size(); ++i) {
    const DataType type = dtypes[i];
    const size_t bytes = WireBytes(type, PaddedElements(type, shapes_[i]));
    if (bytes >= kAloneBytes || bytes > threshold) {
      Entry alone;
      alone.signature.dtype = type;
      alone.tensors = {i};
      Finish(names, std::move(alone));
      continue;
    }
    OpenGroup& group = open[type];
    if (group.bytes + bytes > threshold && !group.entry.tensors.empty()) {
      Finish(names, std::exchange(group, OpenGroup()).entry);
    }
    group.entry.signature.dtype = type;
    group.entry.tensors.push_back(i);
    group.bytes += bytes;
  }
  for (auto& [type, group] : open) Finish(names, std::move(group.entry));
}

void AveragePlan::Finish(const std::vector<std::string>& names, Entry entry) {
  entry.signature.weighted = true;
  entry.name = names[entry.tensors[0]];
  if (entry.tensors.size() == 1) {
    entry.signature.shape = shapes_[entry.tensors[0]];
  } else {
    entry.name += " and " + std::to_string(entry.tensors.size() - 1) + " more";
    auto parts = std::make_shared<Parts>();
    size_t elements = 0;
    for (size_t i : entry.tensors) {
      parts->names.push_back(names[i]);
      parts->shapes.push_back(shapes_[i]);
      entry.starts.push_back(elements);
      elements += PaddedElements(entry.signature.dtype, shapes_[i]);
    }
    entry.signature.shape = {static_cast<int64_t>(elements)};
    entry.signature.parts = std::move(parts);
  }
  entries_.push_back(std::move(entry));
}

std::vector<Request> AveragePlan::Requests(const std::vector<Request::Buffers>& buffers,
                                           const std::vector<void*>& outputs, const Weight& weight,
                                           bool fingerprints) const {
  std::vector<Request> requests;
  requests.reserve(entries_.size());
  for (const Entry& entry : entries_) {
    Request request;
    request.name = entry.name;
    request.signature = entry.signature;
    request.scale = weight.value;
    request.memory.weight_on_gpu = weight.on_gpu;
    if (entry.tensors.size() == 1) {
      request.input = buffers[entry.tensors[0]].input;
      request.output = buffers[entry.tensors[0]].output;
    } else {
      request.output = outputs[requests.size()];
      request.parts.reserve(entry.tensors.size());
      for (size_t i : entry.tensors) request.parts.push_back(buffers[i]);
    }
    for (size_t i : entry.tensors) {
      if (!fingerprints) break;
      request.fingerprint = request.fingerprint * 31 +
                            FingerprintOf(entry.signature.dtype, shapes_[i], buffers[i].input);
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace tfmpi
