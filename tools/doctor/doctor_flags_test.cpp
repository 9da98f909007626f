#include "tools/doctor/doctor_flags.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(DoctorFlags, AreReadWithTheProgram) {
  const DoctorFlags flags =
      parse_doctor_flags({"--hosts=a,b", "--json", "--timeout", "2.5", "./train", "--epochs=1"});
  EXPECT_EQ(flags.hosts, "a,b");
  EXPECT_TRUE(flags.json);
  EXPECT_EQ(flags.timeout, std::chrono::milliseconds(2'500));
  EXPECT_EQ(flags.program, "./train");
  EXPECT_FALSE(flags.report);
}

TEST(DoctorFlags, WithoutAnyItIsThisMachine) {
  const DoctorFlags flags = parse_doctor_flags({});
  EXPECT_TRUE(flags.hosts.empty() && flags.nnodes.empty() && flags.program.empty());
}

TEST(DoctorFlags, WhatDoesNotFitIsRefused) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--hosts=a", "--nnodes=2", "--rdzv-endpoint=a"},
                                             {"--nnodes=2"},
                                             {"--rdzv-endpoint=a"},
                                             {"--nnodes=1", "--rdzv-endpoint=a"},
                                             {"--nnodes=x", "--rdzv-endpoint=a"},
                                             {"--timeout=0"},
                                             {"--unknown"}}) {
    EXPECT_THROW(parse_doctor_flags(arguments), UsageError) << arguments.front();
  }
}

}  // namespace
}  // namespace lockstep
