#include "tests/mpi/on_gpus.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "tests/core/device/bouncing_messages.h"
#include "tests/core/device/test_gpu.h"
#include "tests/core/support/elements.h"
#include "tests/core/support/job.h"

namespace tfmpi {
namespace {

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::fflush(nullptr);
  std::_Exit(1);
}

std::vector<Job> Jobs() {
  std::vector<Job> jobs = {{"many", DataType::kFloat32, ReduceOp::kSum, 2000003, 1}};
  for (DataType type : kAllTypes) {
    if (!IsFloating(type)) continue;
    for (size_t count : {0, 1, 5, 1001, 90000}) {
      const std::string name = std::string(Name(type)) + std::to_string(count);
      jobs.push_back({name, type, ReduceOp::kSum, count, 1});
    }
  }
  return jobs;
}

void RunStep(Engine& engine, TestGpu& gpu, GpuStream stream, const std::vector<Job>& jobs) {
  const int rank = engine.topology().rank;
  std::vector<void*> tensors;
  std::vector<size_t> sizes;
  for (const Job& job : jobs) {
    const std::vector<char> input = MakeInput(job, rank);
    sizes.push_back(input.size());
    tensors.push_back(gpu.NewMemory(std::max<size_t>(1, input.size())));
    gpu.Write(tensors.back(), input, stream);
  }
  GpuMemory memory;
  memory.gpu = &*gpu;
  memory.stream = stream;
  memory.ready = gpu.NewEvent();
  if (!gpu->Record(memory.ready, stream).ok()) Die("an event");
  std::vector<std::future<Status>> endings;
  for (size_t i = 0; i < jobs.size(); ++i) {
    Request request = MakeRequest(jobs[i], tensors[i], tensors[i]);
    request.signature.on_gpu = true;
    request.memory = memory;
    auto promise = std::make_shared<std::promise<Status>>();
    request.done = [promise](const Status& status) { promise->set_value(status); };
    endings.push_back(promise->get_future());
    engine.Submit(std::move(request));
  }
  for (std::future<Status>& ending : endings) {
    const Status status = ending.get();
    if (!status.ok()) Die(status.message());
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    const std::vector<char> result = gpu.Read(tensors[i], sizes[i], stream);
    const std::string wrong = CheckOutput(jobs[i], AllRanks(engine.topology().size), result.data());
    if (!wrong.empty()) Die(wrong);
  }
}

}  // namespace

void ReduceOnGpus(std::unique_ptr<Transport> transport, EngineOptions options) {
  const int rank = transport->topology().rank;
  SimulatedGpu::Options how;
  how.seed = static_cast<uint64_t>(rank) + 5;
  how.description = "simulated GPU " + std::to_string(rank);
  TestGpu gpu(how);
  if (transport->gpu_messages() != nullptr) {
    transport = std::make_unique<CudaAware>(std::move(transport), &*gpu, gpu.simulated());
  }
  std::string said;
  options.gpus.wanted = DeviceTransport::kMpi;
  options.gpus.mpi_chunk_bytes = size_t{1} << 20;
  options.log = [&said](const std::string& line) { said += line; };
  {
    Engine engine(std::move(transport), options);
    const GpuStream stream = gpu.NewStream();
    for (int step = 0; step < 3; ++step) RunStep(engine, gpu, stream, Jobs());
    if (!engine.Join().ok()) Die("Join");
  }
  std::printf("RESULT {\"rank\": %d, \"said\": \"%s\"}\n", rank, said.c_str());
}

}  // namespace tfmpi
