#include "lockstep/recovery/internal/state_memory.h"

#include <csignal>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/snapshot/save.h"

namespace lockstep {
namespace {

UniqueFd copy_of(const UniqueFd& fd) {
  return UniqueFd(::dup(fd.get()));
}

c10::IValue state_of(std::int64_t steps, std::int64_t numel = 1000) {
  c10::impl::GenericDict dict = make_dict();
  dict.insert_or_assign("weights", at::full({numel}, static_cast<double>(steps), at::kFloat));
  dict.insert_or_assign("steps", steps);
  return dict;
}

void expect_state(const StateMemory& memory, std::int64_t steps, std::int64_t numel = 1000) {
  ASSERT_EQ(memory.standing(), (Standing{1, steps}));
  const c10::IValue value = memory.read();
  EXPECT_EQ(entry(value, "steps", "test").toInt(), steps);
  const at::Tensor weights = entry(value, "weights", "test").toTensor();
  EXPECT_TRUE(weights.equal(at::full({numel}, static_cast<double>(steps), at::kFloat)));
}

TEST(StateMemory, IsEmptyAtFirst) {
  EXPECT_FALSE(StateMemory().standing().exists());
  EXPECT_FALSE(StateMemory(UniqueFd()).standing().exists());
  EXPECT_FALSE(StateMemory(make_memory_file("test", 100'000)).standing().exists());
  EXPECT_FALSE(StateMemory(UniqueFd(::dup(0))).standing().exists());
}

TEST(StateMemory, HasTheLastCopyAndPassesItOn) {
  StateMemory memory;
  EXPECT_TRUE(memory.write(state_of(1), {1, 1})) << "a file that has to be handed over";
  for (std::int64_t steps = 2; steps < 8; ++steps) {
    EXPECT_FALSE(memory.write(state_of(steps), {1, steps}));
    expect_state(memory, steps);
    expect_state(StateMemory(copy_of(memory.file())), steps);
  }
}

TEST(StateMemory, GrowsIntoANewFile) {
  StateMemory memory;
  memory.write(state_of(1), {1, 1});
  EXPECT_TRUE(memory.write(state_of(2, 1'000'000), {1, 2}));
  expect_state(memory, 2, 1'000'000);
}

void flip_bit(const StateMemory& memory, std::int64_t offset) {
  unsigned char byte = 0;
  ASSERT_EQ(::pread(memory.file().get(), &byte, 1, offset), 1);
  byte ^= 1U;
  ASSERT_EQ(::pwrite(memory.file().get(), &byte, 1, offset), 1);
}

TEST(StateMemory, KnowsTheStateOfTheTrainingsEnd) {
  StateMemory memory;
  memory.write(state_of(1), {1, 1, true});
  EXPECT_EQ(StateMemory(copy_of(memory.file())).standing(), (Standing{1, 1, true}));
  memory.write(state_of(2), {1, 2});
  EXPECT_EQ(StateMemory(copy_of(memory.file())).standing(), (Standing{1, 2}));
}

// A copy of the training's end may be the only one.
TEST(StateMemory, OneCopyTakesNoMemoryForTwo) {
  StateMemory memory;
  const c10::IValue state = state_of(1, 4'000'000);
  memory.write(state, {1, 1});
  struct stat status {};
  ASSERT_EQ(::fstat(memory.file().get(), &status), 0);
  const auto taken = static_cast<std::uint64_t>(status.st_blocks) * 512;
  EXPECT_GE(taken, StateMemory::bytes_of_copy(state));
  EXPECT_LT(taken, 2 * StateMemory::bytes_of_copy(state));
}

// The header has two numbers, then seven of each copy; the second is the newest.
TEST(StateMemory, PassesOverACopyOfWhichAnythingInTheHeaderHasChanged) {
  StateMemory memory;
  memory.write(state_of(1), {1, 1});
  memory.write(state_of(2), {1, 2});
  for (std::int64_t offset = 72; offset < 128; ++offset) {
    flip_bit(memory, offset);
    expect_state(memory, 1);
    flip_bit(memory, offset);
    expect_state(memory, 2);
  }
}

std::int64_t copy_bytes(const StateMemory& memory) {
  return (*memory_file_bytes(memory.file().get()) - 4096) / 2;
}

TEST(StateMemory, ASuccessorWritesOverADamagedCopyAndNotOverTheOnlyWholeOne) {
  const std::int64_t damaged[] = {72, 80, 4096};  // sequence, generation, bytes: of a small state
  for (const std::int64_t offset : damaged) {
    StateMemory before;
    before.write(state_of(1), {1, 1});
    before.write(state_of(2), {1, 2});
    flip_bit(before, offset < 4096 ? offset : offset + copy_bytes(before));
    StateMemory memory(copy_of(before.file()));
    memory.write(state_of(3), {1, 3});
    expect_state(memory, 3);
    flip_bit(memory, 4096 + copy_bytes(memory));  // the new copy, where the damaged one was
    expect_state(memory, 1);
  }
}

TEST(StateMemory, AWriterHashesCopiesOfOthersAlsoAfterItsOwn) {
  StateMemory memory;
  memory.write(state_of(1), {1, 1});
  StateMemory other(copy_of(memory.file()));
  other.write(state_of(2), {1, 2});
  flip_bit(memory, 4096 + copy_bytes(memory));
  memory.write(state_of(3), {1, 3});
  expect_state(memory, 3);
  flip_bit(memory, 4096 + copy_bytes(memory));
  expect_state(memory, 1);
}

// Damage between two writes of one process shows to readers, and costs no copy but while the next
// is written.
TEST(StateMemory, AWriterDoesNotHashWhatItWroteItself) {
  StateMemory memory;
  memory.write(state_of(1), {1, 1});
  memory.write(state_of(2), {1, 2});
  flip_bit(memory, 4096 + copy_bytes(memory));
  expect_state(memory, 1);
  memory.write(state_of(3), {1, 3});
  expect_state(memory, 3);
  flip_bit(memory, 4096);  // the new copy, over the first
  EXPECT_FALSE(memory.standing().exists());
}

// Of the newest copy, which lies in the second half: the one before is taken.
TEST(StateMemory, PassesOverACopyInWhichABitHasChanged) {
  StateMemory memory;
  memory.write(state_of(1), {1, 1});
  memory.write(state_of(2), {1, 2});
  const std::int64_t half = copy_bytes(memory);
  for (const std::int64_t offset : {0, 100, 3904}) {
    flip_bit(memory, 4096 + half + offset);
    expect_state(memory, 1);
    flip_bit(memory, 4096 + offset);
    EXPECT_FALSE(memory.standing().exists());
    EXPECT_THROW(memory.read(), CorruptFile) << offset;
    flip_bit(memory, 4096 + offset);
    flip_bit(memory, 4096 + half + offset);
  }
  expect_state(memory, 2);
}

// A process that does nothing but write is killed at any instant: there is always a whole copy.
TEST(StateMemory, SurvivesItsWriterWheneverThatIsKilled) {
  // Few enough for LibTorch to fill with one thread: a forked process has no other.
  constexpr std::int64_t kNumel = 20'000;
  StateMemory memory;
  memory.write(state_of(0, kNumel), {1, 0});
  std::int64_t before = 0;
  for (int round = 0; round < 30; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      StateMemory writer(copy_of(memory.file()));
      for (std::int64_t steps = before + 1;; ++steps) {
        writer.write(state_of(steps, kNumel), {1, steps});
      }
    }
    ASSERT_GT(child, 0);
    while (StateMemory(copy_of(memory.file())).standing().steps < before + 2 + round % 5)
      ::usleep(50);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const StateMemory found(copy_of(memory.file()));
    ASSERT_TRUE(found.standing().exists());
    EXPECT_GE(found.standing().steps, before);
    before = found.standing().steps;
    expect_state(found, before, kNumel);
  }
}

}  // namespace
}  // namespace lockstep
