#include "tensorflow_patches/core/gpu/staged/chunks.h"

#include <algorithm>

namespace tfmpi {
namespace {

class Cutter {
 public:
  Cutter(size_t limit, size_t max_stretches) : limit_(limit), max_stretches_(max_stretches) {}

  // `whole`: a tensor, unsplit and without a `wire_offset`.
  void Add(Stretch whole) {
    const size_t element = WireBytes(whole.type, 1);
    size_t left = whole.count;
    while (left != 0) {
      if (NeedsNewChunk(element)) chunks_.emplace_back();
      Chunk& chunk = chunks_.back();
      Stretch piece = whole;
      piece.count = std::min(left, (limit_ - chunk.bytes) / element);
      piece.wire_offset = chunk.bytes;
      left -= piece.count;
      piece.padding = left == 0 ? whole.padding : 0;
      if (whole.input != nullptr) whole.input += piece.bytes();
      if (whole.output != nullptr) whole.output += piece.bytes();
      chunk.bytes += piece.count * element + piece.padding;
      chunk.stretches.push_back(piece);
    }
  }

  std::vector<Chunk> Take() { return std::move(chunks_); }

 private:
  bool NeedsNewChunk(size_t element) const {
    return chunks_.empty() || chunks_.back().bytes + element > limit_ ||
           chunks_.back().stretches.size() == max_stretches_;
  }

  const size_t limit_;
  const size_t max_stretches_;
  std::vector<Chunk> chunks_;
};

void AddParts(const FusionEntry& entry, Stretch whole, Cutter* cutter) {
  const Request* const request = entry.request;
  const std::vector<Shape>& shapes = entry.signature.parts->shapes;
  // Null: each part has its own output.
  char* packed = request != nullptr ? static_cast<char*>(request->output) : nullptr;
  whole.padded_output = packed != nullptr;
  for (size_t i = 0; i < shapes.size(); ++i) {
    whole.count = static_cast<size_t>(NumElements(shapes[i]));
    const size_t padded = WireBytes(whole.type, PaddedElements(whole.type, whole.count));
    whole.padding = padded - WireBytes(whole.type, whole.count);
    if (request != nullptr) {
      whole.input = static_cast<const char*>(request->parts[i].input);
      whole.output = packed != nullptr ? packed : static_cast<char*>(request->parts[i].output);
    }
    cutter->Add(whole);
    if (packed != nullptr) packed += padded;
  }
}

}  // namespace

std::vector<Chunk> CutIntoChunks(const std::vector<FusionEntry>& entries, size_t limit,
                                 size_t max_stretches) {
  Cutter cutter(limit, max_stretches);
  for (size_t i = 0; i < entries.size(); ++i) {
    const FusionEntry& entry = entries[i];
    Stretch whole;
    whole.entry = i;
    whole.type = entry.signature.dtype;
    if (entry.signature.parts != nullptr) {
      AddParts(entry, whole, &cutter);
      continue;
    }
    whole.count = Count(entry.signature);
    if (entry.request != nullptr) {
      whole.input = static_cast<const char*>(entry.request->input);
      whole.output = static_cast<char*>(entry.request->output);
    }
    cutter.Add(whole);
  }
  return cutter.Take();
}

}  // namespace tfmpi
