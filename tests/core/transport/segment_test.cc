// The memory that the ranks of a node share: that of its own job, or none.

#include "tensorflow_patches/core/transport/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "gtest/gtest.h"

// In older kernels a profiler's signals, for example, interrupt it, and it has to start again.
extern "C" int posix_fallocate(int file, off_t offset, off_t bytes) {
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  if (sigismember(&blocked, SIGPROF) == 0) return EINTR;
  return fallocate(file, 0, offset, bytes) == 0 ? 0 : errno;
}

namespace tfmpi {
namespace {

constexpr size_t kSegmentBytes = 5000;

class SegmentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    created_ = CreateSegment(kSegmentBytes, &id_, &why_);
    ASSERT_NE(created_, nullptr) << why_;
  }
  void TearDown() override { RemoveSegment(id_); }

  // Puts a file of this name in place of the segment.
  void Replace(mode_t mode, size_t bytes, const void* key) {
    RemoveSegment(id_);
    const int file = shm_open(id_.name, O_RDWR | O_CREAT | O_EXCL, S_IRUSR | S_IWUSR);
    ASSERT_GE(file, 0);
    ASSERT_EQ(fchmod(file, mode), 0);
    ASSERT_EQ(ftruncate(file, static_cast<off_t>(bytes)), 0);
    if (key != nullptr) {
      ASSERT_EQ(pwrite(file, key, sizeof id_.key, kSegmentBytes),
                static_cast<ssize_t>(sizeof id_.key));
    }
    close(file);
  }

  std::string WhyNotAttached() {
    why_.clear();
    EXPECT_EQ(AttachSegment(id_, kSegmentBytes, &why_), nullptr);
    return why_;
  }

  void* created_ = nullptr;
  SegmentId id_ = {};
  std::string why_;
};

TEST_F(SegmentTest, IsOneMemory) {
  void* const attached = AttachSegment(id_, kSegmentBytes, &why_);
  ASSERT_NE(attached, nullptr) << why_;
  RemoveSegment(id_);  // what is mapped stays
  std::strcpy(static_cast<char*>(created_), "shared");
  EXPECT_STREQ(static_cast<char*>(attached), "shared");
  EXPECT_EQ(WhyNotAttached(), "shm_open: No such file or directory");
}

TEST_F(SegmentTest, HasAPlace) {
  const SegmentPlace one = PlaceOfSegments(), two = PlaceOfSegments();
  EXPECT_EQ(std::memcmp(&one, &two, sizeof one), 0);
  EXPECT_NE(one.host[0], '\0');
  EXPECT_EQ(std::strlen(one.boot_id), 37u);  // a UUID and the end of its line
  EXPECT_NE(one.device, 0u);
}

TEST_F(SegmentTest, IsForItsUserAlone) {
  const int file = shm_open(id_.name, O_RDWR, 0);
  ASSERT_GE(file, 0);
  struct stat status = {};
  EXPECT_EQ(fstat(file, &status), 0);
  close(file);
  EXPECT_EQ(status.st_mode & 07777u, static_cast<mode_t>(S_IRUSR | S_IWUSR));
}

// As in two containers with a common /dev/shm, in which processes have the same ids.
TEST_F(SegmentTest, NamesAreDrawn) {
  SegmentId other = {};
  ASSERT_NE(CreateSegment(kSegmentBytes, &other, &why_), nullptr) << why_;
  EXPECT_STRNE(id_.name, other.name);
  EXPECT_NE(std::memcmp(id_.key, other.key, sizeof id_.key), 0);
  RemoveSegment(other);
}

TEST_F(SegmentTest, AnotherJobsIsNotTaken) {
  const SegmentId known = id_;
  id_.key[1] ^= 1;
  EXPECT_EQ(WhyNotAttached(), "the file belongs to another job");
  id_ = known;
  const uint64_t zeros[2] = {};
  Replace(0600, kSegmentBytes + sizeof id_.key, zeros);
  EXPECT_EQ(WhyNotAttached(), "the file belongs to another job");
  Replace(0600, kSegmentBytes + sizeof id_.key, id_.key);
  EXPECT_NE(AttachSegment(id_, kSegmentBytes, &why_), nullptr) << why_;
}

TEST_F(SegmentTest, WhatOthersMayOpenOrHasAnotherSizeIsNotTaken) {
  Replace(0640, kSegmentBytes + sizeof id_.key, id_.key);
  EXPECT_EQ(WhyNotAttached(), "other users may open the file");
  Replace(0602, kSegmentBytes + sizeof id_.key, id_.key);
  EXPECT_EQ(WhyNotAttached(), "other users may open the file");
  Replace(0600, kSegmentBytes, nullptr);  // to touch its end would be a SIGBUS
  EXPECT_EQ(WhyNotAttached(), "the file has the wrong size");
}

TEST_F(SegmentTest, AnotherUsersIsNotTaken) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make a file another user's";
  const std::string path = std::string("/dev/shm") + id_.name;
  ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
  EXPECT_EQ(WhyNotAttached(), "the file belongs to another user");
}

TEST_F(SegmentTest, MoreThanThereIsLeavesNothing) {
  SegmentId none = {};
  std::string why;
  EXPECT_EQ(CreateSegment(size_t{1} << 60, &none, &why), nullptr);
  EXPECT_EQ(none.name[0], '\0');
  EXPECT_NE(why.find("posix_fallocate: "), std::string::npos) << why;
  EXPECT_EQ(AttachSegment(none, 1, &why), nullptr);
}

}  // namespace
}  // namespace tfmpi
