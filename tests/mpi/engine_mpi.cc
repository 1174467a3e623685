// The engine over a real MPI; test_mpi_engine.py starts it under mpirun. It prints "RESULT {json}".
//
//   engine_mpi TRANSPORT check        every dtype, count and operation; the order differs by rank
//   engine_mpi TRANSPORT leave RANK   that rank stops with an error during training
//   engine_mpi TRANSPORT kill RANK    that rank is killed by SIGKILL during training
//   engine_mpi TRANSPORT stop RANK    that rank is stopped (SIGSTOP), as if its machine hung
//   engine_mpi TRANSPORT storm SEED   ranks are killed, the others continue; mpirun --with-ft ulfm
//   engine_mpi TRANSPORT exchange     messages of GPU memory, with a CUDA-aware MPI
//   engine_mpi TRANSPORT gpu          sums on simulated GPUs, with such an MPI
//   engine_mpi TRANSPORT time         compares the engine with plain MPI in a table on rank 0

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <random>

#include "tensorflow_patches/core/engine/engine.h"
#include "tensorflow_patches/core/transport/mpi/plugin_transport.h"
#include "tests/core/support/elements.h"
#include "tests/core/support/job.h"
#include "tests/mpi/exchanges.h"
#include "tests/mpi/on_gpus.h"
#include "tests/mpi/storm.h"
#include "tests/mpi/timings.h"

namespace tfmpi {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::fflush(nullptr);
  std::_Exit(1);
}

void Expect(bool condition, const std::string& what) {
  if (!condition) Die(what);
}

std::future<Status> Submit(Engine& engine, Request request) {
  auto promise = std::make_shared<std::promise<Status>>();
  request.done = [promise](const Status& status) { promise->set_value(status); };
  std::future<Status> ending = promise->get_future();
  engine.Submit(std::move(request));
  return ending;
}

void ExpectEnd(std::future<Status>& ending) {
  const Status status = ending.get();
  Expect(status.ok(), status.message());
}

EngineOptions Options() {
  EngineOptions options;
  options.coordinator.stall_timeout = seconds(30);
  options.collective_timeout = seconds(30);
  options.log = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  return options;
}

std::vector<ReduceOp> OpsOf(DataType type) {
  std::vector<ReduceOp> ops = {ReduceOp::kSum};
  if (IsFloating(type)) ops.push_back(ReduceOp::kAverage);
  if (!IsComplex(type)) ops.insert(ops.end(), {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct});
  return ops;
}

// Counts around the sizes of the fusion buffer, of a single message, and of an exchange's chunks.
std::vector<Job> AllJobs(int step) {
  std::vector<Job> jobs;
  for (DataType type : kAllTypes) {
    if (type == DataType::kBool) continue;
    for (ReduceOp op : OpsOf(type)) {
      for (size_t count : {0, 1, 2, 3, 1000, 16383, 50001}) {
        jobs.push_back(
            {std::string(Name(type)) + Name(op) + std::to_string(count), type, op, count, step});
      }
    }
    // More than the fusion buffer, in several chunks; checking that many elements is slow.
    if (step != 0) continue;
    const ReduceOp op = IsFloating(type) ? ReduceOp::kAverage : ReduceOp::kSum;
    const size_t wire = WireElements(type) * SizeOf(WireType(type));
    std::vector<size_t> sizes = {(size_t{4} << 20) + wire};
    if (type == DataType::kFloat32 || type == DataType::kBfloat16) {
      sizes.insert(sizes.end(), {(size_t{4} << 20) - wire, size_t{4} << 20, 9999999});
    }
    for (size_t bytes : sizes) {
      jobs.push_back({std::string(Name(type)) + "/large" + std::to_string(bytes), type, op,
                      bytes / wire, step});
    }
  }
  return jobs;
}

void CheckAllreduce(Engine& engine, int step) {
  const int rank = engine.topology().rank;
  const std::vector<Job> jobs = AllJobs(step);
  std::vector<size_t> order(jobs.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::mt19937 random(step * 100 + rank);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<std::vector<char>> inputs(jobs.size()), outputs(jobs.size());
  std::vector<std::future<Status>> endings;
  for (size_t i : order) {
    inputs[i] = MakeInput(jobs[i], rank);
    // Every other one in place.
    const bool in_place = i % 2 == 1;
    outputs[i] = in_place ? inputs[i] : std::vector<char>(inputs[i].size(), '\x7b');
    const void* in = in_place ? outputs[i].data() : inputs[i].data();
    endings.push_back(Submit(engine, MakeRequest(jobs[i], in, outputs[i].data())));
  }
  for (std::future<Status>& ending : endings) ExpectEnd(ending);
  for (size_t i = 0; i < jobs.size(); ++i) {
    const std::string wrong =
        CheckOutput(jobs[i], AllRanks(engine.topology().size), outputs[i].data());
    Expect(wrong.empty(), wrong);
  }
}

// Whichever rank has it.
void CheckMaximumOfNan(Engine& engine) {
  const Topology& topology = engine.topology();
  for (int r = 0; r < topology.size; ++r) {
    float value = topology.rank == r ? NAN : static_cast<float>(topology.rank);
    const Job job = {"NaN of " + std::to_string(r), DataType::kFloat32, ReduceOp::kMax, 1, 0};
    std::future<Status> ending = Submit(engine, MakeRequest(job, &value, &value));
    ExpectEnd(ending);
    Expect(std::isnan(value), "a maximum is " + std::to_string(value) + ", not NaN");
  }
}

void CheckAllgather(Engine& engine, int64_t columns) {
  const Topology& topology = engine.topology();
  const auto rows_of = [](int rank) { return int64_t{3} * ((rank + 1) % 3); };  // 0 on rank 2
  std::vector<float> in(rows_of(topology.rank) * columns, static_cast<float>(topology.rank) + 0.5f);
  std::vector<float> out, expected;
  for (int r = 0; r < topology.size; ++r) {
    expected.insert(expected.end(), rows_of(r) * columns, static_cast<float>(r) + 0.5f);
  }
  Request request;
  request.name = "gather" + std::to_string(columns);
  request.signature.kind = OpKind::kAllgather;
  request.signature.shape = {rows_of(topology.rank), columns};
  request.input = in.data();
  request.allocate = [&](const std::vector<int64_t>& rows) -> void* {
    int64_t total = 0;
    for (int64_t n : rows) total += n;
    out.resize(total * columns);
    return out.data();
  };
  std::future<Status> ending = Submit(engine, std::move(request));
  ExpectEnd(ending);
  Expect(out == expected, "allgather: wrong rows");
}

// All elements of rank r's row i are r + i.
class Rows : public RowAccess {
 public:
  Rows(int rank, size_t columns) : rank_(rank), columns_(columns) {}

  static int64_t Of(int rank) { return int64_t{3} * ((rank + 1) % 3); }  // 0 on rank 2

  void Begin(const std::vector<int64_t>& rows, int contributors) override {
    Expect(static_cast<size_t>(contributors) == rows.size(), "exchange: not all ranks");
    for (const int64_t n : rows) missing += n;
  }
  void Put(int64_t begin, int64_t end, char* to) override {
    for (int64_t i = begin; i < end; ++i, --missing) {
      const std::vector<float> row = Row(rank_, i);
      std::memcpy(to + (i - begin) * row.size() * sizeof(float), row.data(),
                  row.size() * sizeof(float));
    }
  }
  void Take(int rank, int64_t begin, int64_t end, const char* from) override {
    for (int64_t i = begin; i < end; ++i, --missing) {
      const std::vector<float> row = Row(rank, i);
      Expect(std::memcmp(from + (i - begin) * row.size() * sizeof(float), row.data(),
                         row.size() * sizeof(float)) == 0,
             "exchange: wrong rows");
    }
  }

  int64_t missing = 0;

 private:
  std::vector<float> Row(int rank, int64_t i) const {
    return std::vector<float>(columns_, static_cast<float>(rank + i));
  }

  const int rank_;
  const size_t columns_;
};

void CheckSparseAllgather(Engine& engine, int64_t columns) {
  const int rank = engine.topology().rank;
  Rows rows(rank, static_cast<size_t>(columns));
  Request request;
  request.name = "exchange" + std::to_string(columns);
  request.signature.kind = OpKind::kSparseAllgather;
  request.signature.shape = {Rows::Of(rank), columns};
  request.rows = &rows;
  std::future<Status> ending = Submit(engine, std::move(request));
  ExpectEnd(ending);
  Expect(rows.missing == 0, "exchange: rows are missing, or came twice");
}

void CheckBroadcast(Engine& engine, size_t count) {
  const Topology& topology = engine.topology();
  for (int root = 0; root < topology.size; ++root) {
    const Job job = {"from" + std::to_string(root) + "/" + std::to_string(count),
                     DataType::kFloat64, ReduceOp::kSum, count, root};
    std::vector<char> data = MakeInput(job, topology.rank);
    Request request;
    request.name = job.name;
    request.signature.kind = OpKind::kBroadcast;
    request.signature.dtype = job.type;
    request.signature.root = root;
    request.signature.shape = {static_cast<int64_t>(count)};
    request.output = data.data();
    std::future<Status> ending = Submit(engine, std::move(request));
    ExpectEnd(ending);
    Expect(data == MakeInput(job, root), "broadcast: wrong bytes");
  }
}

// Rank r takes r more steps than rank 0; the average is over the ranks that still have data.
void CheckUnevenSteps(Engine& engine) {
  const Topology& topology = engine.topology();
  for (int step = 0; step < 3 + topology.rank; ++step) {
    std::vector<int> contributors;
    for (int r = 0; r < topology.size; ++r) {
      if (3 + r > step) contributors.push_back(r);
    }
    for (size_t count : {5, 100000, 3000000}) {
      const Job job = {"uneven" + std::to_string(count), DataType::kFloat32, ReduceOp::kAverage,
                       count, step};
      std::vector<char> data = MakeInput(job, topology.rank);
      std::future<Status> ending = Submit(engine, MakeRequest(job, data.data(), data.data()));
      ExpectEnd(ending);
      const std::string wrong = CheckOutput(job, contributors, data.data());
      Expect(wrong.empty(), wrong);
    }
  }
}

void Check(Engine& engine) {
  for (int step = 0; step < 2; ++step) CheckAllreduce(engine, step);
  CheckMaximumOfNan(engine);
  for (int64_t columns : {1, 7, 500000}) CheckAllgather(engine, columns);
  for (int64_t columns : {1, 7, 500000}) CheckSparseAllgather(engine, columns);
  for (size_t count : {0, 1, 600001}) CheckBroadcast(engine, count);
  CheckUnevenSteps(engine);
  const Status status = engine.Join();
  Expect(status.ok(), status.message());
  const EngineStats stats = engine.stats();
  std::printf("RESULT {\"rank\": %d, \"size\": %d, \"completed\": %llu}\n", engine.topology().rank,
              engine.topology().size, static_cast<unsigned long long>(stats.completed));
}

// Trains until something fails; `rank` does `act` on itself after 20 steps.
void TrainUntilFailure(Engine& engine, int rank, const std::function<void()>& act) {
  Status status;
  TimePoint last_step = Clock::now();
  for (int step = 0; status.ok(); ++step) {
    if (step == 20 && rank == engine.topology().rank) act();
    std::vector<std::vector<float>> data(8, std::vector<float>(20000));
    std::vector<std::future<Status>> endings;
    last_step = Clock::now();
    for (size_t i = 0; i < data.size(); ++i) {
      const Job job = {"w" + std::to_string(i), DataType::kFloat32, ReduceOp::kAverage, 20000, 0};
      endings.push_back(Submit(engine, MakeRequest(job, data[i].data(), data[i].data())));
    }
    for (std::future<Status>& ending : endings) {
      const Status one = ending.get();
      if (!one.ok()) status = one;
    }
  }
  const double waited = std::chrono::duration<double>(Clock::now() - last_step).count();
  std::string message = status.message();
  for (char& c : message) c = c == '"' || c == '\\' || c == '\n' ? ' ' : c;
  std::printf("RESULT {\"rank\": %d, \"code\": %d, \"waited\": %.3f, \"message\": \"%s\"}\n",
              engine.topology().rank, static_cast<int>(status.code()), waited, message.c_str());
  std::fflush(nullptr);
  std::this_thread::sleep_for(seconds(1));  // mpirun kills all ranks when the first one has exited
  std::_Exit(3);
}

void Leave(Engine& engine) {
  const TimePoint start = Clock::now();
  engine.Leave("ValueError: no more data", seconds(5));
  const double waited = std::chrono::duration<double>(Clock::now() - start).count();
  std::printf("RESULT {\"rank\": %d, \"left\": true, \"waited\": %.3f}\n", engine.topology().rank,
              waited);
  std::fflush(nullptr);
  std::this_thread::sleep_for(seconds(1));
  std::_Exit(3);
}

int Main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr,
                 "usage: %s TRANSPORT check|leave|kill|stop|storm|exchange|gpu|time [RANK]\n",
                 argv[0]);
    return 2;
  }
  const std::string mode = argv[2];
  std::unique_ptr<Transport> transport;
  PluginOptions plugin;
  if (const char* ranks = std::getenv("RANKS_PER_NODE")) plugin.ranks_per_node = std::atoi(ranks);
  plugin.shrink_on_fault = mode == "storm" || std::getenv("SHRINK_ON_FAULT") != nullptr;
  const Status status = LoadPluginTransport(argv[1], plugin, &transport);
  Expect(status.ok(), status.message());
  if (mode == "exchange") {
    CheckExchanges(*transport);
    Expect(transport->Finalize().ok(), "Finalize");
    return 0;
  }
  EngineOptions options = Options();
  if (mode == "stop") {
    options.coordinator.stall_timeout = seconds(2);
    options.collective_timeout = seconds(2);
  }
  options.shrink_on_fault = plugin.shrink_on_fault;
  if (mode == "gpu") {
    ReduceOnGpus(std::move(transport), options);
    return 0;
  }
  Engine engine(std::move(transport), options);
  const int rank = argc > 3 ? std::atoi(argv[3]) : 0;
  if (mode == "check") {
    Check(engine);
  } else if (mode == "leave") {
    TrainUntilFailure(engine, rank, [&] { Leave(engine); });
  } else if (mode == "kill") {
    TrainUntilFailure(engine, rank, [] { kill(getpid(), SIGKILL); });
  } else if (mode == "stop") {
    TrainUntilFailure(engine, rank, [] { kill(getpid(), SIGSTOP); });
  } else if (mode == "storm") {
    TrainInStorm(engine, static_cast<uint64_t>(rank));
  } else if (mode == "time") {
    PrintTimings(engine);
    Expect(engine.Join().ok(), "Join");
  } else {
    Die("unknown mode " + mode);
  }
  return 0;
}

}  // namespace
}  // namespace tfmpi

int main(int argc, char** argv) { return tfmpi::Main(argc, argv); }
