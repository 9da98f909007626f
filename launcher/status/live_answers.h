#pragma once

#include "launcher/status/live_server.h"
#include "launcher/supervise/launcher.h"

namespace lockstep::inline internal {

/// What anybody may be told of a job who may connect: GET /healthz (200 or 503, and a line),
/// /metrics (OpenMetrics), /status (JSON). Nothing here changes the job.
LiveAnswer answer_reader(const LiveJob& job, const LiveRequest& request);

/// What is answered to whom the job belongs: the same, POST /stop and /scale.
LiveAnswer answer_owner(LiveJob& job, const LiveRequest& request);

/// What POST /stop and POST /scale are asked for with.
LiveRequest stop_request(const JobStop& wish);
LiveRequest scale_request(int worker_count, const std::string& by);

}  // namespace lockstep::inline internal
