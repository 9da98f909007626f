// The rank tests: every rank of a job runs this same program, `lockstep run` starts it with 1 to 4
// ranks, and it fails when it fails on any rank. --machines=001 lets ranks 0 and 1 share memory, as
// on one machine, and keeps rank 2 apart. --one-device: all ranks use the first CUDA device, over
// nccl as if they were on different machines, since NCCL takes a device for one rank of a machine.
// --ran=FILE: rank 0 writes which tests ran and which were
// skipped, for check_ranks_ran.cmake.
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/program/run_main.h"

namespace {

void set_machine(std::string_view machines) {
  const auto rank = static_cast<std::size_t>(lockstep::env::integer(lockstep::env::kRank).value());
  const std::string machine(machines.substr(rank, 1));
  ::setenv(lockstep::env::kMemoryDomain.name, machine.c_str(), 1);
}

void share_one_device() {
  const int rank = lockstep::env::integer(lockstep::env::kRank).value();
  ::setenv(lockstep::env::kLocalRank.name, "0", 1);
  ::setenv("NCCL_HOSTID", std::to_string(rank).c_str(), 1);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
}

// "ran <name>" or "skipped <name>", a line each.
void write_what_ran(const std::string& path) {
  std::ofstream file(path);
  const auto& tests = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < tests.total_test_suite_count(); ++i) {
    const auto& suite = *tests.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const auto& test = *suite.GetTestInfo(j);
      if (!test.should_run()) continue;
      file << (test.result()->Skipped() ? "skipped " : "ran ") << suite.name() << "." << test.name()
           << "\n";
    }
  }
  if (!file.flush()) throw lockstep::SystemError("write " + path, errno);
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return lockstep::run_main([&] {
    std::string ran;
    for (const std::string_view argument : std::span(argv + 1, argv + argc)) {
      constexpr std::string_view kMachines = "--machines=";
      constexpr std::string_view kRan = "--ran=";
      if (argument.starts_with(kMachines)) {
        set_machine(argument.substr(kMachines.size()));
      } else if (argument.starts_with(kRan)) {
        ran = argument.substr(kRan.size());
      } else if (argument == "--one-device") {
        share_one_device();
      } else {
        throw lockstep::UsageError("rank_tests: unknown argument");
      }
    }
    const int rank = lockstep::init_process_group({.timeout = std::chrono::seconds(60)}).rank();
    const int status = RUN_ALL_TESTS();
    if (rank == 0 && !ran.empty()) write_what_ran(ran);
    lockstep::destroy_process_group();
    return status;
  });
}
