#include "launcher/status/job_metrics.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

JobStatus measured_status() {
  return {.job = "a \"job\"\\\n",
          .host = "host",
          .program = "./train",
          .role = "default",
          .state = JobStatus::State::kRunning,
          .generation = 3,
          .restarts = 2,
          .max_restarts = 5,
          .node_count = 2,
          .world_size = 4,
          .seconds = 12.5,
          .is_healthy = true,
          .workers = {{.rank = 2, .cpu_seconds = 1.25, .resident_bytes = 123'456'789'012},
                      {.rank = 3, .local_rank = 1, .state = WorkerStatus::State::kFailed}}};
}

bool has_line(const std::string& text, const std::string& line) {
  return text.find("\n" + line + "\n") != std::string::npos;
}

TEST(JobMetrics, HaveTheFormOfOpenMetrics) {
  const std::string text = metrics_of(measured_status(), 1'750'000'000.75);
  for (const char* line :
       {"# HELP lockstep_state State of the job.", "lockstep_state{lockstep_state=\"running\"} 1",
        "lockstep_state{lockstep_state=\"failed\"} 0", "# UNIT lockstep_start_time_seconds seconds",
        "lockstep_start_time_seconds 1749999988.250", "# TYPE lockstep_restarts counter",
        "lockstep_restarts_total 2", "lockstep_healthy 1", "lockstep_machines 2",
        "lockstep_worker_cpu_seconds_total{rank=\"2\",local_rank=\"0\"} 1.250",
        "lockstep_worker_resident_bytes{rank=\"2\",local_rank=\"0\"} 123456789012",
        "lockstep_worker_running{rank=\"3\",local_rank=\"1\"} 0"}) {
    EXPECT_TRUE(has_line(text, line)) << line << " in\n" << text;
  }
  EXPECT_TRUE(text.starts_with("# TYPE lockstep_job info\n"));
  EXPECT_TRUE(text.ends_with("\n# EOF\n"));
}

TEST(JobMetrics, EscapeWhatUsersNamed) {
  EXPECT_TRUE(has_line(metrics_of(measured_status(), 0),
                       R"(lockstep_job_info{job="a \"job\"\\\n",host="host",program="./train",)"
                       R"(role="default"} 1)"));
}

TEST(JobMetrics, AreUtf8WhateverAnIdIs) {
  JobStatus status = measured_status();
  status.job = "\xff";
  EXPECT_NE(metrics_of(status, 0).find("job=\"\xef\xbf\xbd\""), std::string::npos);
}

}  // namespace
}  // namespace lockstep
