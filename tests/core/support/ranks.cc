#include "tests/core/support/ranks.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace tfmpi {

void DieOfHang(const std::string& what) {
  const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::fprintf(stderr, "HANG in %s.%s: %s\n", test == nullptr ? "?" : test->test_suite_name(),
               test == nullptr ? "?" : test->name(), what.c_str());
  std::fflush(nullptr);
  std::_Exit(1);
}

Watchdog::Watchdog(std::chrono::seconds limit)
    : thread_([this, limit] {
        std::unique_lock<std::mutex> lock(mutex_);
        if (!changed_.wait_for(lock, limit, [this] { return over_; })) {
          DieOfHang("not over after " + std::to_string(limit.count()) + " s");
        }
      }) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

Ending Submit(Engine& engine, Request request, Ticket* ticket) {
  auto promise = std::make_shared<std::promise<Status>>();
  Ending ending = promise->get_future();
  // set_value throws if `done` runs twice, which ends the process: it must run once.
  request.done = [promise](const Status& status) { promise->set_value(status); };
  const Ticket got = engine.Submit(std::move(request));
  if (ticket != nullptr) *ticket = got;
  return ending;
}

Status Await(Ending& ending) {
  constexpr auto kLimit = std::chrono::seconds(TFMPI_SANITIZED ? 100 : 30);
  if (ending.wait_for(kLimit) != std::future_status::ready) DieOfHang("a request did not end");
  return ending.get();
}

std::string AwaitAll(std::vector<Ending>& endings) {
  std::string first_error;
  for (Ending& ending : endings) {
    const Status status = Await(ending);
    if (!status.ok() && first_error.empty()) first_error = status.message();
  }
  return first_error;
}

Request MakeBarrier(const std::string& name) {
  Request request;
  request.name = name;
  request.signature.kind = OpKind::kBarrier;
  return request;
}

EngineOptions TestOptions() {
  EngineOptions options;
  options.coordinator.fusion_threshold = kTestThreshold;
  options.coordinator.stall_timeout = std::chrono::seconds(TFMPI_SANITIZED ? 60 : 20);
  options.collective_timeout = std::chrono::seconds(TFMPI_SANITIZED ? 60 : 20);
  return options;
}

Ranks::Ranks(int size, const OptionsOf& options_of, const Decorate& decorate) : group_(size) {
  for (int rank = 0; rank < size; ++rank) {
    std::unique_ptr<Transport> transport = group_.CreateTransport(rank);
    if (decorate) transport = decorate(std::move(transport), rank);
    engines_.push_back(std::make_unique<Engine>(std::move(transport), options_of(rank)));
  }
}

void Ranks::Each(const std::function<void(int rank, Engine& engine)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size(); ++rank) {
    threads.emplace_back([&, rank] { body(rank, *engines_[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
}

void Ranks::JoinAll() {
  Each([](int rank, Engine& engine) {
    const Status status = engine.Join();
    EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status.message();
  });
}

}  // namespace tfmpi
