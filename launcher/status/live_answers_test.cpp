#include "launcher/status/live_answers.h"

#include <utility>

#include <gtest/gtest.h>

#include "launcher/job/launch_options.h"
#include "launcher/status/status_json.h"

namespace lockstep {
namespace {

// Does nothing but note what it is told.
struct SilentJob : LiveJob {
  std::vector<JobStop> stops{};
  std::vector<std::pair<int, std::string>> scales{};
  std::string objection{};

  bool is_healthy = true;
  std::string name = "1-2";

  const std::string& mark() const override { return name; }
  JobStatus status() const override {
    return {.job = "job", .is_healthy = is_healthy, .health = "a line\nor two"};
  }
  std::string stop(const JobStop& wish) override {
    stops.push_back(wish);
    return objection;
  }
  std::string scale(int worker_count, const std::string& by) override {
    scales.emplace_back(worker_count, by);
    return objection;
  }
};

unsigned status_for(const LiveRequest& request) {
  SilentJob job;
  const unsigned status = answer_owner(job, request).status;
  EXPECT_TRUE(job.stops.empty());
  return status;
}

TEST(LiveAnswers, TellTheStatus) {
  SilentJob job;
  const LiveAnswer answer = answer_reader(job, {.method = "GET", .target = "/status"});
  EXPECT_EQ(answer.status, 200U);
  EXPECT_EQ(answer.content_type, "application/json");
  EXPECT_EQ(parse_status(answer.body), job.status());
}

TEST(LiveAnswers, TellTheHealthInALine) {
  SilentJob job;
  LiveAnswer answer = answer_reader(job, {.method = "GET", .target = "/healthz"});
  EXPECT_EQ(answer.status, 200U);
  EXPECT_EQ(answer.body, "a line?or two\n");
  job.is_healthy = false;
  EXPECT_EQ(answer_reader(job, {.method = "GET", .target = "/healthz"}).status, 503U);
}

TEST(LiveAnswers, TellMetrics) {
  SilentJob job;
  const LiveAnswer answer = answer_reader(job, {.method = "GET", .target = "/metrics"});
  EXPECT_EQ(answer.content_type, "application/openmetrics-text; version=1.0.0; charset=utf-8");
  EXPECT_TRUE(answer.body.ends_with("# EOF\n"));
}

TEST(LiveAnswers, LetReadersChangeNothing) {
  SilentJob job;
  LiveRequest request = stop_request({.by = "root"});
  EXPECT_EQ(answer_reader(job, request).status, 404U);
  request.target = "/status";
  EXPECT_EQ(answer_reader(job, request).status, 405U);
  EXPECT_TRUE(job.stops.empty());
}

TEST(LiveAnswers, PassAStopOn) {
  SilentJob job;
  EXPECT_EQ(answer_owner(job, stop_request({.by = "root\n\"", .at_once = true})).status, 202U);
  EXPECT_EQ(job.stops, std::vector<JobStop>({{"root?\" (lockstep stop --now)", true}}));
  job.objection = "no";
  const LiveAnswer refused = answer_owner(job, stop_request({.by = "root"}));
  EXPECT_EQ(refused.status, 409U);
  EXPECT_EQ(refused.body, "no\n");
}

TEST(LiveAnswers, PassAScaleOn) {
  SilentJob job;
  EXPECT_EQ(answer_owner(job, scale_request(3, "root")).status, 202U);
  EXPECT_EQ(job.scales, (std::vector<std::pair<int, std::string>>{{3, "root (lockstep scale)"}}));
  for (const int wrong : {0, -1, kMostWorkers + 1}) {
    EXPECT_EQ(answer_owner(job, scale_request(wrong, "root")).status, 400U);
  }
  EXPECT_EQ(job.scales.size(), 1U);
}

TEST(LiveAnswers, RefuseAnythingElse) {
  EXPECT_EQ(status_for({.method = "GET", .target = "/"}), 404U);
  EXPECT_EQ(status_for({.method = "POST", .target = "/status"}), 404U);
  EXPECT_EQ(status_for({.method = "GET", .target = "/stop"}), 404U);
  for (const char* body : {"", "[]", "{}", "{\"by\":3,\"at_once\":true}", "{\"by\":\"a\"}",
                           "{\"by\":\"a\",\"at_once\":1}"}) {
    EXPECT_EQ(status_for({.method = "POST", .target = "/stop", .body = body}), 400U) << body;
  }
}

}  // namespace
}  // namespace lockstep
