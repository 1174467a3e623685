// How NCCL is called, and what becomes of its answers. What it does: collectives_test.cc.

#include "tensorflow_patches/core/device/nccl.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/core/cuda/fake_driver.h"
#include "tests/core/support/ranks.h"

namespace tfmpi {
namespace {

using List = std::vector<std::string>;

const GpuStream kStream = reinterpret_cast<GpuStream>(0x30);
const NcclComm kComm = reinterpret_cast<NcclComm>(0x50);

// What NCCL's functions answer next.
struct Answers {
  int started = kNcclSuccess;     // of calls that may go on
  std::vector<int> states;        // then, of CommGetAsyncError, one after the other
  int in_the_end = kNcclSuccess;  // and of each after these
  int registered = kNcclSuccess;
  NcclConfig config;
};

Answers answers;

int Called(const std::string& name, const std::string& what = "") {
  return FakeDriver::Call(name, what);
}

std::string Hex(uint64_t bits) {
  char text[20];
  std::snprintf(text, sizeof(text), "%llx", static_cast<unsigned long long>(bits));
  return text;
}

void AddReductions(Nccl* nccl) {
  nccl->AllReduce = [](const void* in, void* out, size_t count, int type, int op, NcclComm comm,
                       GpuStream stream) {
    const bool as_said = comm == kComm && stream == kStream && in != out;
    Called("allreduce", (as_said ? "" : "wrong ") + std::to_string(count) + " of type " +
                            std::to_string(type) + " by " + std::to_string(op));
    return answers.started;
  };
  nccl->ReduceScatter = [](const void* in, void* out, size_t count, int type, int op, NcclComm comm,
                           GpuStream stream) {
    const bool as_said = comm == kComm && stream == kStream && in != out;
    Called("reduce-scatter", (as_said ? "" : "wrong ") + std::to_string(count) + " of type " +
                                 std::to_string(type) + " by " + std::to_string(op));
    return answers.started;
  };
  nccl->AllGather = [](const void* in, void* out, size_t count, int type, NcclComm comm,
                       GpuStream stream) {
    const bool as_said = comm == kComm && stream == kStream && in != out;
    Called("allgather",
           (as_said ? "" : "wrong ") + std::to_string(count) + " of type " + std::to_string(type));
    return answers.started;
  };
  nccl->RedOpCreatePreMulSum = [](int* op, void* scalar, int type, int residence, NcclComm) {
    constexpr size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    uint64_t bits = 0;
    std::memcpy(&bits, scalar, kSizes[type]);
    *op = 99;
    return Called("times", Hex(bits) + " of type " + std::to_string(type) +
                               (residence == kNcclScalarHostImmediate ? "" : " wrong"));
  };
  nccl->RedOpDestroy = [](int op, NcclComm) { return Called("delete op", std::to_string(op)); };
}

Nccl MakeFakeNccl() {
  answers = Answers();
  Nccl nccl = {};
  nccl.GetVersion = [](int* version) {
    *version = 23203;
    return kNcclSuccess;
  };
  nccl.CommInitRankConfig = [](NcclComm* comm, int size, NcclId id, int rank, NcclConfig* config) {
    *comm = kComm;
    answers.config = *config;
    Called("init", std::to_string(rank) + "/" + std::to_string(size) + " " + id.bytes);
    return answers.started;
  };
  nccl.CommGetAsyncError = [](NcclComm, int* state) {
    *state = answers.in_the_end;
    if (answers.states.empty()) return kNcclSuccess;
    *state = answers.states.front();
    answers.states.erase(answers.states.begin());
    return kNcclSuccess;
  };
  nccl.CommFinalize = [](NcclComm) {
    Called("finalize");
    return answers.started;
  };
  nccl.CommDestroy = [](NcclComm) { return Called("destroy"); };
  nccl.CommAbort = [](NcclComm) { return Called("abort"); };
  nccl.MemAlloc = [](void** memory, size_t bytes) {
    *memory = reinterpret_cast<void*>(0x1000);
    return Called("memory", std::to_string(bytes));
  };
  nccl.MemFree = [](void*) { return Called("delete memory"); };
  nccl.CommRegister = [](NcclComm, void*, size_t, void** handle) {
    *handle = reinterpret_cast<void*>(0x60);
    Called("register");
    return answers.registered;
  };
  nccl.CommDeregister = [](NcclComm, void*) { return Called("deregister"); };
  nccl.GetErrorString = [](int) { return "unhandled system error"; };
  nccl.GetLastError = [](NcclComm) { return "connection refused"; };
  AddReductions(&nccl);
  return nccl;
}

class NcclTest : public TimedTest {
 protected:
  NcclTest() {
    FakeDriver::Now().current = FakeDriver::Other();
    options_.driver = &driver_;
    options_.context = FakeDriver::Mine();
    options_.rank = 1;
    options_.size = 3;
    std::strcpy(options_.id.bytes, "id");
    options_.deadline = Clock::now() + std::chrono::seconds(60);
  }

  Status Make() { return MakeNcclCollectives(nccl_, options_, &made_); }
  void Begin() {
    ASSERT_EQ(Make().message(), "");
    Calls();
  }
  // What was called since; each in the GPU's context.
  static List Calls() {
    List calls;
    for (std::string& call : FakeDriver::Now().calls) {
      if (call != "push" && call != "pop") calls.push_back(std::move(call));
    }
    FakeDriver::Now().calls.clear();
    EXPECT_EQ(FakeDriver::Now().current, FakeDriver::Other());
    return calls;
  }
  Status Allreduce(size_t count, DataType type, ReduceOp op, double scale) {
    return made_->Allreduce(nullptr, &made_, count, type, op, scale, kStream, Soon());
  }
  Status ReduceScatter(size_t count, DataType type, ReduceOp op, double scale) {
    return made_->ReduceScatter(nullptr, &made_, count, type, op, scale, kStream, Soon());
  }
  Status Allgather(size_t count, DataType type) {
    return made_->Allgather(nullptr, &made_, count, type, kStream, Soon());
  }
  // Of a reduction that is enqueued.
  List Reduce(DataType type, ReduceOp op, double scale = 1) {
    EXPECT_EQ(Allreduce(10, type, op, scale).message(), "");
    return Calls();
  }

  static TimePoint Soon() { return Clock::now() + std::chrono::milliseconds(500); }

  const Driver driver_ = MakeFakeDriver();
  const Nccl nccl_ = MakeFakeNccl();
  NcclOptions options_;
  std::unique_ptr<DeviceCollectives> made_;
};

TEST_F(NcclTest, BeginsWhenAllRanksHaveCome) {
  options_.max_ctas = 8;
  answers.started = kNcclInProgress;
  answers.states = {kNcclInProgress, kNcclInProgress};
  EXPECT_EQ(Make().message(), "");
  EXPECT_EQ(Calls(), (List{"init 1/3 id"}));
  EXPECT_TRUE(answers.states.empty()) << "it was asked until it was done";
  EXPECT_EQ(answers.config.size, 40u);
  EXPECT_EQ(answers.config.magic, 0xcafebeefu);
  EXPECT_EQ(answers.config.blocking, 0);
  EXPECT_EQ(answers.config.max_ctas, 8);
  EXPECT_EQ(made_->description(), "NCCL 2.32.3");
  made_.reset();
  EXPECT_EQ(Calls(), (List{"finalize", "destroy"}));
}

TEST_F(NcclTest, ARankThatDoesNotComeIsWaitedForUntilTheDeadline) {
  options_.deadline = Clock::now() + std::chrono::milliseconds(20);
  answers.started = answers.in_the_end = kNcclInProgress;
  const Status status = Make();
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(status.message(),
            "NCCL 2.32.3: ncclCommInitRankConfig between 3 ranks: not all of them arrived in "
            "time; another rank hangs or has died");
  EXPECT_GE(Clock::now(), options_.deadline);
  EXPECT_EQ(Calls(), (List{"init 1/3 id", "abort"}));
  EXPECT_EQ(made_, nullptr);
}

TEST_F(NcclTest, AnErrorOfTheStartIsToldWithNcclsReason) {
  answers.started = kNcclInProgress;
  answers.states = {kNcclInProgress, 2};
  const Status status = Make();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(status.message(),
            "NCCL 2.32.3: ncclCommInitRankConfig between 3 ranks: unhandled system error "
            "(connection refused); set NCCL_DEBUG=WARN for details");
  EXPECT_EQ(Calls(), (List{"init 1/3 id", "abort"}));
}

TEST_F(NcclTest, TypesAndReductionsAreNccls) {
  Begin();
  using Type = DataType;
  const std::vector<std::pair<Type, int>> types = {
      {Type::kInt8, 0},    {Type::kUint8, 1},   {Type::kInt32, 2},   {Type::kUint32, 3},
      {Type::kInt64, 4},   {Type::kUint64, 5},  {Type::kFloat16, 6}, {Type::kFloat32, 7},
      {Type::kFloat64, 8}, {Type::kBfloat16, 9}};
  const auto by = [](const std::string& count, int type, int op) {
    return "allreduce " + count + " of type " + std::to_string(type) + " by " + std::to_string(op);
  };
  for (const auto& [type, number] : types) {
    EXPECT_EQ(Reduce(type, ReduceOp::kMax), List{by("10", number, 2)});
    const List sum = Reduce(type, ReduceOp::kSum);
    if (IsFloating(type)) {
      ASSERT_EQ(sum.size(), 3u) << "as an average, so that it is the same where ranks weigh";
      EXPECT_EQ(sum[1], by("10", number, 99));
    } else {
      EXPECT_EQ(sum, List{by("10", number, 0)});
    }
  }
  EXPECT_EQ(Reduce(Type::kComplex64, ReduceOp::kSum).at(1), by("20", 7, 99));
  EXPECT_EQ(Reduce(Type::kComplex128, ReduceOp::kSum).at(1), by("20", 8, 99));
  EXPECT_EQ(Reduce(Type::kInt8, ReduceOp::kProduct), List{"allreduce 10 of type 0 by 1"});
  EXPECT_EQ(Reduce(Type::kInt8, ReduceOp::kMax), List{"allreduce 10 of type 0 by 2"});
  EXPECT_EQ(Reduce(Type::kInt8, ReduceOp::kMin), List{"allreduce 10 of type 0 by 3"});
  for (const Type type : {Type::kInt16, Type::kUint16, Type::kBool}) {
    EXPECT_EQ(Allreduce(1, type, ReduceOp::kSum, 1).message(),
              std::string("NCCL has no sum of ") + Name(type) + ": it must be staged");
  }
  EXPECT_EQ(Calls(), List{});
}

// The scale is of the elements' type; the operation lives until the reduction is enqueued.
TEST_F(NcclTest, AnAverageScalesEachRanksElements) {
  Begin();
  const auto average = [this](DataType type, double scale) {
    const List calls = Reduce(type, ReduceOp::kAverage, scale);
    EXPECT_EQ(calls.size(), 3u);
    EXPECT_EQ(calls[1].substr(calls[1].find(" by")), " by 99");
    EXPECT_EQ(calls[2], "delete op 99");
    return calls[0];
  };
  EXPECT_EQ(average(DataType::kFloat16, 0.25), "times 3400 of type 6");
  EXPECT_EQ(average(DataType::kBfloat16, 1.0 / 3), "times 3eab of type 9");
  EXPECT_EQ(average(DataType::kFloat32, 1.0 / 3), "times 3eaaaaab of type 7");
  EXPECT_EQ(average(DataType::kFloat64, 0.5), "times 3fe0000000000000 of type 8");
  EXPECT_EQ(average(DataType::kComplex64, 0.5), "times 3f000000 of type 7");
  EXPECT_EQ(average(DataType::kComplex128, 0.5), "times 3fe0000000000000 of type 8");
  EXPECT_EQ(average(DataType::kFloat32, 1), "times 3f800000 of type 7")
      << "the same operation on all ranks, whatever their scales";
  const Status scaled = Allreduce(1, DataType::kFloat32, ReduceOp::kSum, 0.5);
  EXPECT_EQ(scaled.code(), Code::kInvalidArgument);
  EXPECT_EQ(scaled.message(),
            "sum of " + std::string(Name(DataType::kFloat32)) + " takes no scale");
  EXPECT_FALSE(Allreduce(1, DataType::kInt32, ReduceOp::kAverage, 1).ok());
}

// Counts are those of one rank's share.
TEST_F(NcclTest, TheHalvesOfAReductionAreNcclsToo) {
  Begin();
  EXPECT_TRUE(ReduceScatter(10, DataType::kFloat32, ReduceOp::kAverage, 0.5).ok());
  EXPECT_EQ(Calls(), (List{"times 3f000000 of type 7", "reduce-scatter 10 of type 7 by 99",
                           "delete op 99"}));
  EXPECT_TRUE(ReduceScatter(10, DataType::kComplex64, ReduceOp::kSum, 1).ok());
  EXPECT_EQ(Calls().at(1), "reduce-scatter 20 of type 7 by 99");
  EXPECT_TRUE(ReduceScatter(10, DataType::kInt8, ReduceOp::kMax, 1).ok());
  EXPECT_EQ(Calls(), List{"reduce-scatter 10 of type 0 by 2"});
  EXPECT_TRUE(Allgather(10, DataType::kFloat16).ok());
  EXPECT_TRUE(Allgather(10, DataType::kComplex128).ok());
  EXPECT_EQ(Calls(), (List{"allgather 10 of type 6", "allgather 20 of type 8"}));
  EXPECT_FALSE(ReduceScatter(1, DataType::kFloat32, ReduceOp::kSum, 0.5).ok());
  EXPECT_EQ(ReduceScatter(1, DataType::kInt16, ReduceOp::kSum, 1).message(),
            "NCCL has no sum of int16: it must be staged");
  EXPECT_EQ(Allgather(1, DataType::kBool).code(), Code::kInvalidArgument);
  EXPECT_EQ(Calls(), List{});

  answers.started = kNcclInProgress;
  answers.states = {kNcclInProgress};
  EXPECT_TRUE(Allgather(1, DataType::kFloat32).ok()) << "after a while";
  answers.in_the_end = kNcclInProgress;
  EXPECT_EQ(Allgather(10, DataType::kFloat64).message(),
            "NCCL 2.32.3: ncclAllGather of 80 bytes between 3 ranks: not all of them arrived in "
            "time; another rank hangs or has died");
  EXPECT_EQ(Allgather(1, DataType::kFloat32).code(), Code::kUnavailable);
  EXPECT_EQ(ReduceScatter(1, DataType::kFloat32, ReduceOp::kSum, 1).message(),
            "NCCL 2.32.3: its communicator has failed");
}

TEST_F(NcclTest, AReduceScatterThatIsNotEnqueuedInTimeEndsTheGroup) {
  Begin();
  answers.started = answers.in_the_end = kNcclInProgress;
  EXPECT_EQ(ReduceScatter(10, DataType::kInt32, ReduceOp::kSum, 1).message(),
            "NCCL 2.32.3: ncclReduceScatter of 40 bytes between 3 ranks: not all of them arrived "
            "in time; another rank hangs or has died");
  EXPECT_EQ(made_->Poll().code(), Code::kUnavailable);
}

// A rank that ends without a word is not waited for.
TEST_F(NcclTest, AnEndThatNotAllComeToIsAnAbort) {
  Begin();
  answers.started = answers.in_the_end = kNcclInProgress;
  const TimePoint begin = Clock::now();
  made_.reset();
  EXPECT_EQ(Calls(), (List{"finalize", "abort"}));
  EXPECT_GE(Clock::now() - begin, std::chrono::seconds(5));
}

// Nothing is left of it, and streams still use its memory.
TEST_F(NcclTest, ABufferThatIsLeftIsGivenBackInTheEnd) {
  Begin();
  void* memory = nullptr;
  EXPECT_TRUE(made_->NewBuffer(7, &memory).ok());
  made_.reset();
  EXPECT_EQ(Calls(), (List{"memory 7", "register", "synchronize", "deregister", "delete memory",
                           "finalize", "destroy"}));
}

TEST_F(NcclTest, AContextThatIsGoneIsAnError) {
  Begin();
  FakeDriver::Now().errors["push"] = 700;
  EXPECT_EQ(Allgather(1, DataType::kFloat32).code(), Code::kInternal);
  FakeDriver::Now().errors.clear();
  EXPECT_EQ(Calls(), List{});
  EXPECT_EQ(made_->Poll().code(), Code::kUnavailable);
}

TEST_F(NcclTest, AReductionThatIsNotEnqueuedInTimeEndsTheGroup) {
  Begin();
  answers.started = kNcclInProgress;
  answers.states = {kNcclInProgress};
  EXPECT_TRUE(Allreduce(1, DataType::kFloat32, ReduceOp::kSum, 1).ok()) << "after a while";
  answers.in_the_end = kNcclInProgress;
  const Status status = Allreduce(10, DataType::kComplex64, ReduceOp::kSum, 1);
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(status.message(),
            "NCCL 2.32.3: ncclAllReduce of 80 bytes between 3 ranks: not all of them arrived in "
            "time; another rank hangs or has died");
  EXPECT_EQ(made_->Poll().code(), Code::kUnavailable);
  EXPECT_EQ(Allreduce(1, DataType::kFloat32, ReduceOp::kSum, 1).code(), Code::kUnavailable);
  Calls();
  made_.reset();
  EXPECT_EQ(Calls(), List{"abort"}) << "nobody to finalize with";
}

TEST_F(NcclTest, AnErrorThatComesLaterIsFoundByPoll) {
  Begin();
  EXPECT_TRUE(made_->Poll().ok());
  answers.states = {kNcclInProgress};
  EXPECT_TRUE(made_->Poll().ok());
  answers.states = {2};
  EXPECT_EQ(made_->Poll().message(),
            "NCCL 2.32.3: a collective between 3 ranks: unhandled system error (connection "
            "refused); set NCCL_DEBUG=WARN for details");
  made_->Abort();
  made_->Abort();
  EXPECT_EQ(made_->Poll().code(), Code::kUnavailable);
  made_.reset();
  EXPECT_EQ(Calls(), List{"abort"}) << "once";
}

TEST_F(NcclTest, BuffersAreRegisteredWhereThatIsPossible) {
  Begin();
  void* memory = nullptr;
  EXPECT_TRUE(made_->NewBuffer(7, &memory).ok());
  EXPECT_EQ(memory, reinterpret_cast<void*>(0x1000));
  made_->DeleteBuffer(memory);
  EXPECT_EQ(Calls(), (List{"memory 7", "register", "synchronize", "deregister", "delete memory"}));
  answers.registered = 3;
  EXPECT_TRUE(made_->NewBuffer(7, &memory).ok());
  made_->DeleteBuffer(memory);
  EXPECT_EQ(Calls(), (List{"memory 7", "register", "synchronize", "delete memory"}));
  EXPECT_TRUE(made_->Poll().ok()) << "it goes on without";

  // What is registered ends with the communicator; the memory, which streams may still use, not.
  answers.registered = kNcclSuccess;
  EXPECT_TRUE(made_->NewBuffer(7, &memory).ok());
  made_->Abort();
  EXPECT_EQ(Calls(), (List{"memory 7", "register", "abort"}));
  made_.reset();
  EXPECT_EQ(Calls(), (List{"synchronize", "delete memory"}));
}

TEST_F(NcclTest, ALibraryThatIsNotThereOrNotNccl) {
  Nccl nccl;
  EXPECT_NE(LoadNccl("/nowhere/libnccl.so.2", &nccl).message().find("/nowhere/libnccl.so.2"),
            std::string::npos);
  EXPECT_EQ(LoadNccl("libc.so.6", &nccl).message(),
            "libc.so.6 has no ncclGetVersion: use NCCL 2.19 or newer, or "
            "TF_MPI_GPU_TRANSPORT=staged");
  EXPECT_EQ(NcclVersionText(23203), "2.32.3");
}

}  // namespace
}  // namespace tfmpi
