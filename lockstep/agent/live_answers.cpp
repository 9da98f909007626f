#include "lockstep/agent/live_answers.h"

#include "lockstep/agent/status_json.h"

namespace lockstep {

LiveAnswer answer_request(LiveJob& job, const LiveRequest& request) {
  if (request.target != "/status") return {.status = 404, .body = "there is: /status\n"};
  if (request.method != "GET") return {.status = 405, .body = "it is read by GET\n"};
  return {.content_type = "application/json", .body = to_json(job.status()) + "\n"};
}

}  // namespace lockstep
