#include "tensorflow_patches/core/transport/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace tfmpi {
namespace {

constexpr size_t kKeyBytes = sizeof(SegmentId::key);

std::string Reason(const char* what, int error) {
  return std::string(what) + ": " + std::strerror(error);
}

bool Draw(void* out, size_t bytes) {
  return getrandom(out, bytes, 0) == static_cast<ssize_t>(bytes);
}

// Maps `bytes` of memory and the key after it. Closes the file.
void* Map(int file, size_t bytes, std::string* why) {
  void* const memory =
      mmap(nullptr, bytes + kKeyBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) *why = Reason("mmap", errno);
  close(file);
  return memory == MAP_FAILED ? nullptr : memory;
}

char* KeyIn(void* memory, size_t bytes) { return static_cast<char*>(memory) + bytes; }

// "" if the file belongs to this user alone and is complete; else the reason.
std::string ReasonToStop(int file, size_t bytes) {
  struct stat status = {};
  if (fstat(file, &status) != 0) return Reason("fstat", errno);
  if (status.st_uid != geteuid()) return "the file belongs to another user";
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) return "other users may open the file";
  if (status.st_size != static_cast<off_t>(bytes + kKeyBytes)) return "the file has the wrong size";
  return "";
}

}  // namespace

SegmentPlace PlaceOfSegments() {
  SegmentPlace place = {};
  gethostname(place.host, sizeof place.host - 1);
  if (FILE* const file = std::fopen("/proc/sys/kernel/random/boot_id", "re")) {
    if (std::fgets(place.boot_id, sizeof place.boot_id, file) == nullptr) place.boot_id[0] = '\0';
    std::fclose(file);
  }
  struct stat status = {};
  const int folder = open("/dev/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    if (fstat(folder, &status) == 0) place.device = status.st_dev;
    close(folder);
  }
  return place;
}

void* CreateSegment(size_t bytes, SegmentId* id, std::string* why) {
  *id = SegmentId();
  uint64_t drawn[2] = {};
  SegmentId made = {};
  if (!Draw(drawn, sizeof drawn) || !Draw(made.key, sizeof made.key)) {
    *why = Reason("getrandom", errno);
    return nullptr;
  }
  std::snprintf(made.name, sizeof made.name, "/tf_mpi.%016" PRIx64 "%016" PRIx64, drawn[0],
                drawn[1]);
  const int file = shm_open(made.name, O_RDWR | O_CREAT | O_EXCL, S_IRUSR | S_IWUSR);
  if (file < 0) {
    *why = Reason("shm_open", errno);
    return nullptr;
  }
  // Allocated now: a full file system is an error here, and would be a SIGBUS later. In older
  // kernels a signal, such as a profiler's, interrupts and undoes the allocation. sigprocmask,
  // because pthread_sigmask needs a newer glibc; on Linux both affect only the calling thread.
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  const int error = posix_fallocate(file, 0, static_cast<off_t>(bytes + kKeyBytes));
  sigprocmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    *why = Reason("posix_fallocate", error);
    close(file);
    RemoveSegment(made);
    return nullptr;
  }
  void* const memory = Map(file, bytes, why);
  if (memory == nullptr) {
    RemoveSegment(made);
    return nullptr;
  }
  std::memcpy(KeyIn(memory, bytes), made.key, kKeyBytes);
  *id = made;
  return memory;
}

void* AttachSegment(const SegmentId& id, size_t bytes, std::string* why) {
  if (id.name[0] == '\0') {
    *why = "the first rank of the node could not create it";
    return nullptr;
  }
  const int file = shm_open(id.name, O_RDWR, 0);
  if (file < 0) {
    *why = Reason("shm_open", errno);
    return nullptr;
  }
  *why = ReasonToStop(file, bytes);
  if (!why->empty()) {
    close(file);
    return nullptr;
  }
  void* const memory = Map(file, bytes, why);
  if (memory == nullptr) return nullptr;
  if (std::memcmp(KeyIn(memory, bytes), id.key, kKeyBytes) != 0) {
    *why = "the file belongs to another job";
    UnmapSegment(memory, bytes);
    return nullptr;
  }
  return memory;
}

void UnmapSegment(void* memory, size_t bytes) {
  if (memory != nullptr) munmap(memory, bytes + kKeyBytes);
}

void RemoveSegment(const SegmentId& id) {
  if (id.name[0] != '\0') shm_unlink(id.name);
}

}  // namespace tfmpi
