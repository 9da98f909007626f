#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/environment_testing.h"
#include "lockstep/train/trainer_loop.h"

namespace lockstep {
namespace {

TEST(TrainerProcesses, MachinesAreThoseOfSrun) {
  const EnvironmentForTest environment(kUnderSrun);
  TrainerOptions options;
  options.num_nodes = 2;
  EXPECT_FALSE(starts_processes(options));
  options.num_nodes = 4;
  EXPECT_THROW(starts_processes(options), UsageError);
}

}  // namespace
}  // namespace lockstep
