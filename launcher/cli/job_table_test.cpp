#include "launcher/cli/job_table.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(JobTable, HasALineForEachJobAndWorker) {
  std::vector<RunningJob> jobs = {
      {.pid = 4711,
       .status = JobStatus{.job = "train",
                           .pid = 4711,
                           .program = "./train",
                           .state = JobStatus::State::kRunning,
                           .restarts = 1,
                           .max_restarts = 3,
                           .node_rank = 0,
                           .node_count = 2,
                           .world_size = 4,
                           .worker_count = 1,
                           .seconds = 61,
                           .is_healthy = true,
                           .workers = {{.rank = 0,
                                        .pid = 4712,
                                        .seconds = 7,
                                        .cpu_seconds = 6.96,
                                        .resident_bytes = 123'456'789}}},
       .name = "train"},
      {.pid = 47, .trouble = "does not answer", .name = "47"}};
  EXPECT_EQ(job_table(jobs, true),
            "JOB    PID   STATE    MACHINE  WORKERS  WORLD  RESTARTS  SINCE  PROGRAM\n"
            "train  4711  running  0 of 2   1        4      1 of 3    1 min  ./train\n"
            "  rank 0  local rank 0  pid 4712  running for 7 s  cpu 7.0 s  memory 123 MB\n"
            "47     47    does not answer\n");
}

TEST(JobTable, SaysWhatIsWrong) {
  const std::vector<RunningJob> jobs = {
      {.pid = 1,
       .status = JobStatus{.missing = "machine 2", .health = "cut off from the rendezvous: why"},
       .name = "1"}};
  const std::string text = job_table(jobs, false);
  EXPECT_NE(text.find("gathering!"), std::string::npos) << text;
  EXPECT_NE(text.find("\n  ! cut off from the rendezvous: why\n  waiting: machine 2\n"),
            std::string::npos)
      << text;
}

TEST(JobTable, WritesDurationsAndBytes) {
  EXPECT_EQ(duration_text(-1), "0 s");
  EXPECT_EQ(duration_text(59.9), "59 s");
  EXPECT_EQ(duration_text(3599), "59 min");
  EXPECT_EQ(duration_text(7500), "2 h 5 min");
  EXPECT_EQ(duration_text(100 * 3600), "4 d 4 h");
}

}  // namespace
}  // namespace lockstep
