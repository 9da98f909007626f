#pragma once

#include "launcher/status/live_server.h"
#include "launcher/supervise/launcher.h"

namespace lockstep::inline internal {

/// Answers a client that may only read: GET /healthz (200 or 503, and a line), /metrics
/// (OpenMetrics), /status (JSON).
LiveAnswer answer_reader(const LiveJob& job, const LiveRequest& request);

/// Answers the user who started the job: the same, POST /stop and POST /scale.
LiveAnswer answer_owner(LiveJob& job, const LiveRequest& request);

/// The request POST /stop.
LiveRequest stop_request(const JobStop& wish);
/// The request POST /scale.
LiveRequest scale_request(int worker_count, const std::string& by);

}  // namespace lockstep::inline internal
