#include "launcher/status/status_json.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

JobStatus some_status() {
  return {.job = "a \"job\"",
          .is_named = true,
          .pid = 4711,
          .host = "host",
          .program = "./train",
          .role = "default",
          .state = JobStatus::State::kRunning,
          .generation = 3,
          .restarts = 1,
          .max_restarts = 2,
          .cause = "rank 1 failed\n",
          .node_rank = 1,
          .node_count = 2,
          .world_size = 5,
          .worker_count = 3,
          .seconds = 12.5,
          .workers_seconds = 1.25,
          .log_directory = "/logs/job_x",
          .missing = "nobody",
          .is_healthy = true,
          .health = "running",
          .workers = {{.rank = 2,
                       .local_rank = 0,
                       .pid = 4712,
                       .state = WorkerStatus::State::kStopped,
                       .seconds = 1.25,
                       .cpu_seconds = 0.5,
                       .resident_bytes = std::uint64_t{1} << 40}}};
}

TEST(StatusJson, IsReadBack) {
  EXPECT_EQ(parse_status(to_json(some_status())), some_status());
  EXPECT_EQ(parse_status(to_json(JobStatus{})), JobStatus{});
}

TEST(StatusJson, ToleratesTextThatIsNotUtf8) {
  JobStatus status = some_status();
  status.cause = "\xff";
  const auto read = parse_status(to_json(status));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->cause, "\xef\xbf\xbd");
}

TEST(StatusJson, AnythingElseIsNone) {
  EXPECT_FALSE(parse_status(""));
  EXPECT_FALSE(parse_status("[]"));
  const nlohmann::json whole = nlohmann::json::parse(to_json(some_status()));
  for (const auto& [name, value] : whole.items()) {
    nlohmann::json changed = whole;
    changed.erase(name);
    EXPECT_FALSE(parse_status(changed.dump())) << "without " << name;
    changed[name] = nlohmann::json::array({7});
    EXPECT_FALSE(parse_status(changed.dump())) << name << " of another type";
  }
  nlohmann::json state = whole;
  state["state"] = "asleep";
  EXPECT_FALSE(parse_status(state.dump()));
}

}  // namespace
}  // namespace lockstep
