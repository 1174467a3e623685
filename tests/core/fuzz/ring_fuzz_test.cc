// Control messages through a ring, in pieces of any size, from any position; and a ring with
// arbitrary content.

#include <cstring>
#include <deque>
#include <memory>

#include "gtest/gtest.h"
#include "tensorflow_patches/core/transport/control_channel.h"
#include "tests/core/fuzz/fuzzer.h"

namespace tfmpi {
namespace {

std::string Message(Fuzzer* fuzzer) {
  constexpr int kSizes[] = {0, 1, 100, 5000, 40'000, 70'000};
  std::string message(static_cast<size_t>(fuzzer->Below(1 + kSizes[fuzzer->Below(6)])), '\0');
  char next = static_cast<char>(fuzzer->Below(256));
  for (char& c : message) c = next = static_cast<char>(next * 5 + 1);
  return message;
}

// Begins at counter values of a long job, including the last ones before they wrap to 0.
void Begin(ControlRing* ring, Fuzzer* fuzzer) {
  const uint64_t back = static_cast<uint64_t>(fuzzer->Below(100'000));
  const uint64_t start = fuzzer->Below(2) == 0 ? back : uint64_t{0} - back;
  ring->written = start;
  ring->read = start;
}

TEST(RingFuzzTest, WhatGoesInComesOut) {
  Fuzzer fuzzer(3);
  for (int trial = 0; trial < MESSAGES / 200; ++trial) {
    const auto out = std::make_unique<ControlRing>(), back = std::make_unique<ControlRing>();
    Begin(out.get(), &fuzzer);
    Begin(back.get(), &fuzzer);
    ControlChannel sender(out.get(), back.get()), receiver(back.get(), out.get());
    std::deque<std::string> sent;
    const auto receive = [&] {
      std::string message;
      bool made_room = false;
      while (receiver.Receive(&message, &made_room)) {
        ASSERT_FALSE(sent.empty());
        ASSERT_EQ(message, sent.front()) << "trial " << trial;
        sent.pop_front();
      }
    };
    for (int i = 0; i < 100; ++i) {
      switch (fuzzer.Below(3)) {
        case 0:
          sent.push_back(Message(&fuzzer));
          sender.Send(sent.back());
          break;
        case 1:
          sender.Flush();
          break;
        default:
          receive();
      }
    }
    while (sender.Blocked()) {
      sender.Flush();
      receive();
    }
    receive();
    ASSERT_TRUE(sent.empty()) << "trial " << trial;
  }
}

// As when an unrelated process has written there. What is read may be anything, but nothing outside
// the ring is accessed, and no more memory is used than the ring has.
TEST(RingFuzzTest, NothingBesideARingIsTouchedWhateverStandsInIt) {
  Fuzzer fuzzer(4);
  struct Place {
    char before[64];
    ControlRing ring;
    char after[64];
  };
  const auto place = std::make_unique<Place>();
  constexpr char kMark = 0x5a;
  std::memset(place->before, kMark, sizeof place->before);
  std::memset(place->after, kMark, sizeof place->after);
  const std::string marks(sizeof place->after, kMark);
  std::string bytes(2 * ControlRing::kBytes, 'x');
  for (int i = 0; i < MESSAGES / 4; ++i) {
    const auto word = [&fuzzer] {
      const auto high = static_cast<uint64_t>(fuzzer.Below(1 << 30));
      return fuzzer.Below(2) == 0 ? high
                                  : high << 34 | static_cast<uint64_t>(fuzzer.Below(1 << 30));
    };
    place->ring.written = word();
    place->ring.read = word();
    EXPECT_LE(place->ring.Readable(), ControlRing::kBytes);
    EXPECT_LE(place->ring.Read(&bytes[0], ControlRing::kBytes), ControlRing::kBytes);
    EXPECT_LE(place->ring.Write(bytes.data(), bytes.size()), ControlRing::kBytes);
    ASSERT_EQ(std::string(place->before, sizeof place->before), marks);
    ASSERT_EQ(std::string(place->after, sizeof place->after), marks);
  }
}

}  // namespace
}  // namespace tfmpi
