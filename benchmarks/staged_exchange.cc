// The hosts' part in reducing a staged GPU tensor, measured without GPUs: the exchange of its
// chunks between ranks of one node, from each rank's own memory and in place in the node's memory.
//
//   bazel run -c opt //benchmarks:staged_exchange -- [ranks] [MiB] [rounds]
//
// Ranks are threads; both methods alternate. Prints the median time of each for the whole tensor,
// and fails if a result is wrong.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tensorflow_patches/core/base/sizes.h"
#include "tensorflow_patches/core/transport/shm/node_buffers.h"
#include "tests/core/support/nodes.h"

namespace tfmpi {
namespace {

constexpr size_t kChunk = kGpuChunkBytes / sizeof(float);

TimePoint Deadline() { return Clock::now() + std::chrono::seconds(60); }

void Need(bool well, const char* what) {
  if (well) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

double Median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// Reduces chunks, each in the next slot of a ring, as if the GPU had copied it there.
class Exchange {
 public:
  static constexpr size_t kSlots = 5;

  explicit Exchange(Transport* transport) : transport_(transport), own_(kSlots * kChunk) {
    std::string why;
    const Status status =
        transport->MakeNodeBuffers(kSlots * kGpuChunkBytes, Deadline(), &buffers_, &why);
    Need(status.ok() && buffers_ != nullptr, "the ranks share no buffers");
  }

  void FromOwn(size_t chunk) {
    float* const data = own_.data() + chunk % kSlots * kChunk;
    data[0] = 1;
    Need(transport_->Allreduce(data, data, Sum(), Deadline()).ok(), "allreduce");
    Need(data[0] == static_cast<float>(transport_->topology().size), "the result");
  }

  void InPlace(size_t chunk) {
    const size_t offset = chunk % kSlots * kGpuChunkBytes;
    float* const data = reinterpret_cast<float*>(buffers_->of(buffers_->rank()) + offset);
    data[0] = 1;
    Need(buffers_->Allreduce(offset, Sum(), Deadline()).ok(), "allreduce in place");
    const auto* const first = reinterpret_cast<const float*>(buffers_->of(0) + offset);
    Need(first[0] == static_cast<float>(transport_->topology().size), "the result in place");
  }

 private:
  static Reduction Sum() { return {kChunk, DataType::kFloat32, ReduceOp::kSum, 1}; }

  Transport* const transport_;
  std::unique_ptr<NodeBuffers> buffers_;
  std::vector<float> own_;
};

int Main(int ranks, size_t mebibytes, int rounds) {
  Nodes nodes(1, ranks);
  nodes.UseSegments();
  LocalGroup group(ranks);
  std::vector<double> times[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Transport> transport = nodes.Wrap(group.CreateTransport(rank), rank);
      Exchange exchange(transport.get());
      const size_t chunks = (mebibytes << 20) / kGpuChunkBytes;
      for (int round = 0; round < 2 * rounds; ++round) {
        const TimePoint start = Clock::now();
        for (size_t chunk = 0; chunk < chunks; ++chunk) {
          round % 2 == 0 ? exchange.FromOwn(chunk) : exchange.InPlace(chunk);
        }
        const std::chrono::duration<double, std::milli> took = Clock::now() - start;
        if (rank == 0 && round > 1) times[round % 2].push_back(took.count());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("%d ranks, %zu MiB: from own memory %.1f ms, in place %.1f ms\n", ranks, mebibytes,
              Median(times[0]), Median(times[1]));
  return 0;
}

}  // namespace
}  // namespace tfmpi

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const int mebibytes = argc > 2 ? std::atoi(argv[2]) : 256;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 7;
  return tfmpi::Main(ranks, static_cast<size_t>(mebibytes), std::max(rounds, 2));
}
