#pragma once

#include "lockstep/agent/live_server.h"
#include "lockstep/launch/live_job.h"

namespace lockstep {

/// What is answered to whom the job belongs: GET /status, and POST /stop with a body such as
/// {"by": "root", "at_once": false}.
LiveAnswer answer_request(LiveJob& job, const LiveRequest& request);

/// What POST /stop is asked for with.
LiveRequest stop_request(const JobStop& wish);

}  // namespace lockstep
