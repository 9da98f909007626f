// The rank tests: every rank of a job runs this same program, `lockstep run` starts it with 1 to 4
// ranks, and it fails when it fails on any rank. --machines=001 lets ranks 0 and 1 share memory, as
// on one machine, and keeps rank 2 apart.
#include <cstdlib>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/run_main.h"
#include "lockstep/comm/init_process_group.h"

namespace {

void set_machine(std::string_view argument) {
  constexpr std::string_view kFlag = "--machines=";
  if (!argument.starts_with(kFlag)) throw lockstep::UsageError("rank_tests: unknown argument");
  argument.remove_prefix(kFlag.size());
  const auto rank = static_cast<std::size_t>(lockstep::env::integer(lockstep::env::kRank).value());
  const std::string machine(argument.substr(rank, 1));
  ::setenv(lockstep::env::kMemoryDomain.name, machine.c_str(), 1);
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return lockstep::run_main([&] {
    if (argc > 1) set_machine(argv[1]);
    lockstep::init_process_group({.timeout = std::chrono::seconds(60)});
    const int status = RUN_ALL_TESTS();
    lockstep::destroy_process_group();
    return status;
  });
}
