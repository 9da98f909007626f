#include "lockstep/one_copy/internal/past_values.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal::past_values_tests {
namespace {

constexpr std::uint64_t kBytes = 64 * 1024;
constexpr std::uint64_t kNumbersOfUnit = PastValues::kUnitBytes / sizeof(std::uint64_t);
constexpr std::uint64_t kUnits = kBytes / PastValues::kUnitBytes;
using Values = std::vector<std::uint64_t>;

/// A memory file, and a process beside others that map it.
class Process {
 public:
  Process(const UniqueFd& data, const UniqueFd& past_file)
      : data_(data.get()),
        memory_(data.get(), kBytes),
        past(UniqueFd(::fcntl(past_file.get(), F_DUPFD_CLOEXEC, 0)), kBytes,
             [this](std::size_t holder) { return is_alive[holder]; }) {
    memory_.populate(0, kBytes);
    is_alive.fill(true);
  }

  /// Writes the number to all of these units.
  void write(std::uint64_t first, std::uint64_t end, std::uint64_t number) {
    past.keep(memory_.data(), first * PastValues::kUnitBytes,
              (end - first) * PastValues::kUnitBytes);
    overwrite(first, end, number);
  }
  void overwrite(std::uint64_t first, std::uint64_t end, std::uint64_t number) {
    auto* const numbers = reinterpret_cast<std::uint64_t*>(memory_.data());
    std::fill(numbers + first * kNumbersOfUnit, numbers + end * kNumbersOfUnit, number);
  }

  /// The numbers of the version from `first` on.
  Values read(std::uint64_t version, std::uint64_t first = 0,
              std::uint64_t count = kUnits * kNumbersOfUnit) const {
    Values values(count);
    const std::uint64_t offset = first * sizeof(std::uint64_t);
    const std::uint64_t bytes = count * sizeof(std::uint64_t);
    EXPECT_EQ(::pread(data_, values.data(), bytes, static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes));
    past.restore(version, offset, bytes, reinterpret_cast<std::byte*>(values.data()));
    return values;
  }

 private:
  const int data_;
  const SharedMapping memory_;

 public:
  std::array<bool, PastValues::kMostHolders> is_alive = {};
  PastValues past;
};

class PastValuesTest : public ::testing::Test {
 protected:
  std::unique_ptr<Process> process() { return std::make_unique<Process>(data_, past_); }

  static Values numbers(std::uint64_t number, std::uint64_t count = kUnits * kNumbersOfUnit) {
    return Values(count, number);
  }

  const UniqueFd data_ = make_memory_file("data", kBytes);
  const UniqueFd past_ = PastValues::make_file("test", kBytes);
};

TEST_F(PastValuesTest, AHolderReadsItsVersionWhateverIsWritten) {
  const auto writer = process();
  const auto holder = process();
  writer->past.begin_writes();
  writer->write(0, kUnits, 7);
  ASSERT_TRUE(holder->past.hold(3, 1));
  for (std::uint64_t step = 0; step < 3; ++step) {
    writer->past.begin_writes();
    writer->write(step, 40 + step, 8 + step);  // More than a word, neither aligned.
    writer->write(900, kUnits, 8 + step);
    EXPECT_EQ(holder->read(1), numbers(7));
    EXPECT_EQ(holder->read(1, 3, 333), numbers(7, 333));
  }
  EXPECT_NE(holder->read(2), numbers(7)) << "only what is held is kept";
}

TEST_F(PastValuesTest, TheNextVersionIsNotMixedWithTheLast) {
  const auto writer = process();
  for (std::uint64_t version = 0; version < 5; ++version) {
    ASSERT_TRUE(writer->past.hold(0, version));
    writer->past.begin_writes();
    // Not all units in each version.
    writer->write(version * 3, 100, version + 1);
    Values expected = numbers(0);
    for (std::uint64_t before = 0; before < version; ++before) {
      std::fill(expected.begin() + static_cast<std::ptrdiff_t>(before * 3 * kNumbersOfUnit),
                expected.begin() + static_cast<std::ptrdiff_t>(100 * kNumbersOfUnit), before + 1);
    }
    EXPECT_EQ(writer->read(version), expected) << "version " << version;
    writer->past.let_go(0);
  }
}

TEST_F(PastValuesTest, AllHoldTheSameVersionWhileTheirProcessesLive) {
  const auto one = process();
  const auto other = process();
  EXPECT_TRUE(one->past.hold(0, 5));
  EXPECT_TRUE(other->past.hold(1, 5));
  EXPECT_FALSE(other->past.hold(2, 6)) << "an earlier one is held";
  one->past.let_go(0);
  EXPECT_FALSE(other->past.hold(2, 6));
  other->is_alive[1] = false;
  EXPECT_TRUE(other->past.hold(2, 6)) << "its process has died";
}

// What is kept must be of the version that a live process holds.
TEST_F(PastValuesTest, WritersKeepNothingForAProcessThatHasDied) {
  const auto one = process();
  ASSERT_TRUE(one->past.hold(0, 9));
  one->is_alive[0] = false;
  ASSERT_TRUE(one->past.hold(1, 4));
  one->past.begin_writes();
  one->write(0, kUnits, 3);
  EXPECT_EQ(one->read(4), numbers(0));
}

// As where a rank is killed, and another writes the rest and some of it again.
TEST_F(PastValuesTest, WhatOneWriterHasKeptNoOtherKeepsAgain) {
  const auto first = process();
  const auto survivor = process();
  ASSERT_TRUE(survivor->past.hold(0, 1));
  first->past.begin_writes();
  first->write(0, 10, 1);
  survivor->past.begin_writes();
  survivor->write(0, 20, 2);
  EXPECT_EQ(survivor->read(1), numbers(0));
}

TEST_F(PastValuesTest, AWriterWithoutMemoryGoesOnAndTheHolderHasAnError) {
  const auto writer = process();
  const auto holder = process();
  ASSERT_TRUE(holder->past.hold(0, 1));
  ASSERT_EQ(::ftruncate(past_.get(), 64 * 1024), 0);  // The head remains.
  writer->past.begin_writes();
  writer->write(0, 10, 1);
  ASSERT_EQ(::ftruncate(past_.get(), 64 * 1024 + 2 * kBytes), 0);
  EXPECT_THROW(holder->read(1), SystemError);
  EXPECT_FALSE(holder->past.hold(1, 1)) << "its values are lost";
  holder->past.let_go(0);
  EXPECT_TRUE(holder->past.hold(0, 2));
}

// Two writers with units in the same words, and a holder that reads while they write.
TEST_F(PastValuesTest, ReadersSeeOneVersionWhileWritersRun) {
  constexpr std::uint64_t kVersions = 300;
  std::array<std::unique_ptr<Process>, 2> writers{process(), process()};
  const auto holder = process();
  for (std::uint64_t version = 0; version < kVersions; ++version) {
    ASSERT_TRUE(holder->past.hold(0, version));
    std::vector<std::thread> threads;
    for (std::uint64_t number = 0; number < writers.size(); ++number) {
      threads.emplace_back([&, number] {
        Process& writer = *writers[number];
        writer.past.begin_writes();
        // Unequal runs of units, by turns one writer's and the other's.
        for (std::uint64_t unit = 0, run = 0; unit < kUnits; ++run) {
          const std::uint64_t end = std::min(kUnits, unit + 1 + (run * 7 + version) % 45);
          if (run % 2 == number) writer.write(unit, end, version + 1);
          unit = end;
        }
      });
    }
    const Values during = holder->read(version);
    for (std::thread& thread : threads) thread.join();
    const Values after = holder->read(version);
    holder->past.let_go(0);
    ASSERT_EQ(during, numbers(version));
    ASSERT_EQ(after, numbers(version));
  }
}

}  // namespace
}  // namespace lockstep::inline internal::past_values_tests
