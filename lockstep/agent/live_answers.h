#pragma once

#include "lockstep/agent/live_server.h"
#include "lockstep/launch/live_job.h"

namespace lockstep {

/// What is answered about a job: GET /status.
LiveAnswer answer_request(LiveJob& job, const LiveRequest& request);

}  // namespace lockstep
