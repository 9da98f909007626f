#include "launcher/command_line/program_beside.h"

#include <gtest/gtest.h>

#include "lockstep/os/process/find_program.h"

namespace lockstep {
namespace {

TEST(ProgramBeside, EndsLikeAShellWhereThereIsNone) {
  try {
    program_beside("lockstep-no-such-program", "lockstep none");
    FAIL() << "it is there";
  } catch (const ProgramError& error) {
    EXPECT_EQ(error.exit_code(), ProgramError::kNotFound);
  }
}

}  // namespace
}  // namespace lockstep
