#include "launcher/status/live_answers.h"

#include <chrono>

#include <nlohmann/json.hpp>

#include "launcher/agents/handshake.h"
#include "launcher/job/launch_options.h"
#include "launcher/status/job_metrics.h"
#include "launcher/status/status_json.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

using nlohmann::json;

LiveAnswer text_answer(unsigned status, const std::string& text) {
  return {.status = status, .body = text + "\n"};
}

LiveAnswer done_unless(const std::string& objection) {
  return objection.empty() ? text_answer(202, "accepted") : text_answer(409, objection);
}

// Who wishes it, for the console and the reports of all machines.
std::string wisher_of(const json& wish) {
  constexpr std::size_t kLongestBytes = 100;
  return handshake::one_line(wish.at("by").get<std::string>().substr(0, kLongestBytes));
}

LiveAnswer stop(LiveJob& job, const json& wish) {
  const bool at_once = wish.at("at_once").get<bool>();
  return done_unless(job.stop(
      {.by = concat(wisher_of(wish), at_once ? " (lockstep stop --now)" : " (lockstep stop)"),
       .at_once = at_once}));
}

LiveAnswer scale(LiveJob& job, const json& wish) {
  const json& workers = wish.at("workers");
  if (!workers.is_number_integer() || workers < 1 || workers > kMostWorkers) {
    return text_answer(400, concat("wrong number of workers; give 1 to ", kMostWorkers));
  }
  return done_unless(job.scale(workers.get<int>(), wisher_of(wish) + " (lockstep scale)"));
}

}  // namespace

LiveAnswer answer_reader(const LiveJob& job, const LiveRequest& request) {
  const bool is_known =
      request.target == "/healthz" || request.target == "/metrics" || request.target == "/status";
  if (!is_known) return text_answer(404, "not found; use /healthz, /metrics or /status");
  if (request.method != "GET") return text_answer(405, "method not allowed; use GET");
  const JobStatus status = job.status();
  if (request.target == "/healthz") {
    return text_answer(status.is_healthy ? 200 : 503, handshake::one_line(status.health));
  }
  if (request.target == "/metrics") {
    const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
    return {.content_type = kMetricsContentType, .body = metrics_of(status, now.count())};
  }
  return {.content_type = "application/json", .body = to_json(status) + "\n"};
}

LiveAnswer answer_owner(LiveJob& job, const LiveRequest& request) {
  if (request.method != "POST") return answer_reader(job, request);
  const bool scales = request.target == "/scale";
  if (!scales && request.target != "/stop")
    return text_answer(404, "not found; use /stop or /scale");
  try {
    const json wish = json::parse(request.body);
    return scales ? scale(job, wish) : stop(job, wish);
  } catch (const json::exception&) {
    return text_answer(400, "malformed body");
  }
}

LiveRequest scale_request(int worker_count, const std::string& by) {
  return {.method = "POST",
          .target = "/scale",
          .body = json({{"by", by}, {"workers", worker_count}}).dump()};
}

LiveRequest stop_request(const JobStop& wish) {
  return {.method = "POST",
          .target = "/stop",
          .body = json({{"by", wish.by}, {"at_once", wish.at_once}}).dump()};
}

}  // namespace lockstep::inline internal
