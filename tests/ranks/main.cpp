// The rank tests: every rank of a job runs this same program, `lockstep run` starts it with 1 to 4
// ranks, and it fails when it fails on any rank.
#include <gtest/gtest.h>

#include "lockstep/base/run_main.h"
#include "lockstep/comm/init_process_group.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return lockstep::run_main([] {
    lockstep::init_process_group({.timeout = std::chrono::seconds(60)});
    const int status = RUN_ALL_TESTS();
    lockstep::destroy_process_group();
    return status;
  });
}
