// NCCL between processes of one machine, on top of the CUDA stand-in: copies to the host, sums in
// memory that the processes share, and copies back. Calls are enqueued and run late, on their
// stream's thread; there a collective waits for all ranks, and ends if it is aborted.
//
// FAKE_NCCL_VERBOSE=1 prints each communicator and each collective of a rank.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#define NCCL_API extern "C" __attribute__((visibility("default")))

extern "C" {
int cuMemHostAlloc(void** memory, size_t bytes, unsigned flags);
int cuMemFreeHost(void* memory);
int cuMemAlloc_v2(uint64_t* memory, size_t bytes);
int cuMemFree_v2(uint64_t memory);
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream);
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream);
int cuLaunchHostFunc(void* stream, void (*function)(void*), void* argument);
int cuCtxSynchronize();
}

namespace {

constexpr int kMostRanks = 16;
constexpr size_t kMostBytes = size_t{16} << 20;  //  largest input of a rank
constexpr size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
enum Kind { kAllreduce, kReduceScatter, kAllgather };
enum Result { kSuccess = 0, kUnhandledCudaError = 1, kSystemError = 2, kInvalidUsage = 5 };

struct Id {
  char name[128];
};

// A rank's input. Collectives alternate between two places: a rank that has reached the next
// collective has finished reading this one.
struct Place {
  std::atomic<uint64_t> number;  //  of the collective, from 1
  uint64_t bytes;
  int kind, type, op;
  char data[kMostBytes];
};

struct Shared {
  Place places[2][kMostRanks];
};

struct Comm {
  int rank = 0, size = 1;
  std::string name;
  Shared* shared = nullptr;
  uint64_t begun = 0;
  std::atomic<bool> aborted{false};
  std::atomic<int> error{0};
  std::map<int, double> scales;  //  for operations created by the caller
  int next_op = 100;
  std::vector<void*> pinned;
};

// An enqueued collective.
struct Work {
  Comm* comm;
  Kind kind;
  uint64_t number;
  size_t in_bytes, out_bytes;
  int type, op;
  double scale;
  char* host;
};

void Say(const Comm& comm, const char* what, size_t bytes) {
  static const bool kVerbose = std::getenv("FAKE_NCCL_VERBOSE") != nullptr;
  if (!kVerbose) return;
  std::fprintf(stderr, "nccl%s rank %d/%d: %s of %zu bytes\n", comm.name.c_str(), comm.rank,
               comm.size, what, bytes);
}

class Bfloat16 {
 public:
  Bfloat16() = default;
  // Rounds to nearest even.
  explicit Bfloat16(double wanted) {
    const auto single = static_cast<float>(wanted);
    uint32_t bits = 0;
    std::memcpy(&bits, &single, 4);
    bits_ = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
  explicit operator double() const {
    const uint32_t bits = uint32_t{bits_} << 16;
    float value = 0;
    std::memcpy(&value, &bits, 4);
    return static_cast<double>(value);
  }

 private:
  uint16_t bits_ = 0;
};

// Calls `as` with a value of an ncclDataType_t.
template <typename As>
auto Visit(int type, const As& as) {
  switch (type) {
    case 0:
      return as(int8_t{});
    case 1:
      return as(uint8_t{});
    case 2:
      return as(int32_t{});
    case 3:
      return as(uint32_t{});
    case 4:
      return as(int64_t{});
    case 5:
      return as(uint64_t{});
    case 6:
      return as(static_cast<_Float16>(0));
    case 7:
      return as(float{});
    case 8:
      return as(double{});
    default:
      return as(Bfloat16());
  }
}

double Get(int type, const char* data, size_t i) {
  return Visit(type, [&](auto value) {
    std::memcpy(&value, data + i * sizeof(value), sizeof(value));
    return static_cast<double>(value);
  });
}

void Set(int type, char* data, size_t i, double wanted) {
  Visit(type, [&](auto value) {
    value = static_cast<decltype(value)>(wanted);
    std::memcpy(data + i * sizeof(value), &value, sizeof(value));
  });
}

double Reduced(int op, double a, double b) {
  return op == 1 ? a * b : op == 2 ? std::max(a, b) : op == 3 ? std::min(a, b) : a + b;
}

// Runs on the stream's thread.
void Run(void* argument) {
  const std::unique_ptr<Work> work(static_cast<Work*>(argument));
  Comm& comm = *work->comm;
  Place* const places = comm.shared->places[work->number % 2];
  Place& own = places[comm.rank];
  std::memcpy(own.data, work->host, work->in_bytes);
  const size_t size = kSizes[work->type];
  for (size_t i = 0; work->kind != kAllgather && i < work->in_bytes / size; ++i) {
    Set(work->type, own.data, i, Get(work->type, own.data, i) * work->scale);
  }
  own.bytes = work->in_bytes;
  own.kind = work->kind;
  own.type = work->type;
  own.op = work->op;
  own.number.store(work->number, std::memory_order_release);
  for (int r = 0; r < comm.size; ++r) {
    while (places[r].number.load(std::memory_order_acquire) != work->number) {
      if (comm.aborted) return;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (places[r].bytes == own.bytes && places[r].kind == own.kind && places[r].type == own.type &&
        places[r].op == own.op) {
      continue;
    }
    comm.error = kInvalidUsage;  //  and the call never completes
    while (!comm.aborted) std::this_thread::sleep_for(std::chrono::microseconds(50));
    return;
  }
  if (work->kind == kAllgather) {
    for (int r = 0; r < comm.size; ++r) {
      std::memcpy(work->host + r * own.bytes, places[r].data, own.bytes);
    }
  } else {
    const size_t begin = work->kind == kAllreduce ? 0 : comm.rank * work->out_bytes / size;
    for (size_t i = 0; i < work->out_bytes / size; ++i) {
      Set(work->type, work->host, i, Get(work->type, places[0].data, begin + i));
      for (int r = 1; r < comm.size; ++r) {
        Set(work->type, work->host, i,
            Reduced(work->op, Get(work->type, work->host, i),
                    Get(work->type, places[r].data, begin + i)));
      }
    }
  }
}

// This rank's input and output have `bytes` each.
int Enqueue(Comm* comm, Kind kind, const void* in, size_t in_bytes, void* out, size_t out_bytes,
            int type, int op, void* stream) {
  constexpr const char* kNames[] = {"allreduce", "reduce-scatter", "allgather"};
  if (in_bytes > kMostBytes) return kSystemError;
  Say(*comm, kNames[kind], in_bytes);
  auto work = std::make_unique<Work>(
      Work{comm, kind, ++comm->begun, in_bytes, out_bytes, type, 0, 1, nullptr});
  const auto made = comm->scales.find(op);
  if (made != comm->scales.end()) work->scale = made->second;
  if (made == comm->scales.end()) work->op = op;
  void* host = nullptr;
  if (cuMemHostAlloc(&host, std::max<size_t>(1, std::max(in_bytes, out_bytes)), 0) != 0) {
    return kUnhandledCudaError;
  }
  comm->pinned.push_back(host);
  work->host = static_cast<char*>(host);
  int result = cuMemcpyDtoHAsync_v2(host, reinterpret_cast<uint64_t>(in), in_bytes, stream);
  if (result == 0) result = cuLaunchHostFunc(stream, &Run, work.release());
  if (result == 0) {
    result = cuMemcpyHtoDAsync_v2(reinterpret_cast<uint64_t>(out), host, out_bytes, stream);
  }
  return result == 0 ? kSuccess : kUnhandledCudaError;
}

void End(Comm* comm) {
  cuCtxSynchronize();
  for (void* const memory : comm->pinned) cuMemFreeHost(memory);
  munmap(comm->shared, sizeof(Shared));
  shm_unlink(comm->name.c_str());  //  even if another rank already did
  delete comm;
}

}  // namespace

NCCL_API int ncclGetVersion(int* version) {
  *version = 22803;
  return kSuccess;
}

NCCL_API int ncclGetUniqueId(Id* id) {
  static int number = 0;
  *id = {};
  std::snprintf(id->name, sizeof(id->name), "/standin-nccl-%d-%d", getpid(), number++);
  return kSuccess;
}

NCCL_API int ncclCommInitRankConfig(Comm** made, int size, Id id, int rank, void*) {
  if (size > kMostRanks) return kSystemError;
  const int file = shm_open(id.name, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, sizeof(Shared)) != 0) return kSystemError;
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return kSystemError;
  auto* const comm = new Comm;
  comm->rank = rank;
  comm->size = size;
  comm->name = id.name;
  comm->shared = static_cast<Shared*>(memory);
  Say(*comm, "a communicator", 0);
  *made = comm;
  return kSuccess;
}

NCCL_API int ncclCommGetAsyncError(Comm* comm, int* state) {
  *state = comm->error;
  return kSuccess;
}

NCCL_API int ncclCommFinalize(Comm*) { return kSuccess; }

NCCL_API int ncclCommDestroy(Comm* comm) {
  End(comm);
  return kSuccess;
}

NCCL_API int ncclCommAbort(Comm* comm) {
  comm->aborted = true;
  End(comm);
  return kSuccess;
}

NCCL_API int ncclAllReduce(const void* in, void* out, size_t count, int type, int op, Comm* comm,
                           void* stream) {
  const size_t bytes = count * kSizes[type];
  return Enqueue(comm, kAllreduce, in, bytes, out, bytes, type, op, stream);
}

NCCL_API int ncclReduceScatter(const void* in, void* out, size_t count, int type, int op,
                               Comm* comm, void* stream) {
  const size_t bytes = count * kSizes[type];
  return Enqueue(comm, kReduceScatter, in, bytes * comm->size, out, bytes, type, op, stream);
}

NCCL_API int ncclAllGather(const void* in, void* out, size_t count, int type, Comm* comm,
                           void* stream) {
  const size_t bytes = count * kSizes[type];
  return Enqueue(comm, kAllgather, in, bytes, out, bytes * comm->size, type, 0, stream);
}

NCCL_API int ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int, Comm* comm) {
  *op = comm->next_op++;
  comm->scales[*op] = Get(type, static_cast<const char*>(scalar), 0);
  return kSuccess;
}

NCCL_API int ncclRedOpDestroy(int op, Comm* comm) {
  comm->scales.erase(op);
  return kSuccess;
}

NCCL_API int ncclMemAlloc(void** memory, size_t bytes) {
  uint64_t pointer = 0;
  if (cuMemAlloc_v2(&pointer, bytes) != 0) return kUnhandledCudaError;
  *memory = reinterpret_cast<void*>(pointer);
  return kSuccess;
}

NCCL_API int ncclMemFree(void* memory) {
  return cuMemFree_v2(reinterpret_cast<uint64_t>(memory)) == 0 ? kSuccess : kUnhandledCudaError;
}

NCCL_API int ncclCommRegister(Comm*, void* memory, size_t, void** handle) {
  *handle = memory;
  return kSuccess;
}

NCCL_API int ncclCommDeregister(Comm*, void*) { return kSuccess; }
NCCL_API const char* ncclGetErrorString(int) { return "an error of the stand-in"; }
NCCL_API const char* ncclGetLastError(Comm*) { return ""; }
