// A process that is killed at every failpoint that a copy of the state passes.
#include "lockstep/base/internal/failpoint.h"

#if defined(LOCKSTEP_FAILPOINTS)

#include <csignal>
#include <string>

#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/recovery/internal/state_memory.h"
#include "lockstep/snapshot/save.h"

namespace lockstep {
namespace {

constexpr int kParts = 5;

c10::IValue parts_of(std::int64_t steps) {
  c10::impl::GenericDict dict = make_dict();
  for (std::int64_t part = 0; part < kParts; ++part) {
    dict.insert_or_assign(std::to_string(part),
                          at::full({100 + part}, static_cast<double>(steps * kParts + part)));
  }
  return dict;
}

void expect_parts(const UniqueFd& file, std::int64_t steps) {
  const StateMemory memory(UniqueFd(::dup(file.get())));
  ASSERT_EQ(memory.standing().steps, steps);
  const c10::IValue value = memory.read();
  for (std::int64_t part = 0; part < kParts; ++part) {
    const at::Tensor tensor = entry(value, std::to_string(part).c_str(), "test").toTensor();
    EXPECT_TRUE(tensor.equal(
        at::full({100 + part}, static_cast<double>(steps * kParts + part), tensor.options())));
  }
}

bool writer_is_killed(const StateMemory& memory, std::int64_t steps, const std::string& failpoint) {
  const pid_t writer = ::fork();
  if (writer == 0) {
    StateMemory own(UniqueFd(::dup(memory.file().get())));
    arm_failpoints(failpoint);
    own.write(parts_of(steps), {.generation = 1, .steps = steps});
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(writer, &status, 0), writer);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

TEST(StateMemoryFailpoints, AWriterThatIsKilledAtAnyStageLeavesAWholeCopy) {
  StateMemory memory;
  memory.write(parts_of(1), {.generation = 1, .steps = 1});
  for (std::int64_t round = 0; round < 2; ++round) {  // Of either of the two.
    const std::int64_t last = 1 + 10 * round;
    EXPECT_TRUE(writer_is_killed(memory, last + 1, "memory.begin:1:kill"));
    expect_parts(memory.file(), last);
    for (int part = 1; part <= kParts; ++part) {
      EXPECT_TRUE(writer_is_killed(memory, last + 1, concat("memory.part:", part, ":kill")));
      expect_parts(memory.file(), last);
    }
    EXPECT_TRUE(writer_is_killed(memory, last + 1, "memory.copied:1:kill"));
    expect_parts(memory.file(), last);
    EXPECT_TRUE(writer_is_killed(memory, last + 1, "memory.done:1:kill"));
    expect_parts(memory.file(), last + 1);
    memory.write(parts_of(last + 10), {.generation = 1, .steps = last + 10});
    expect_parts(memory.file(), last + 10);
  }
}

}  // namespace
}  // namespace lockstep

#endif
