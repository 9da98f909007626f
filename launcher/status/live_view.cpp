#include "launcher/status/live_view.h"

#include "launcher/job/console.h"
#include "launcher/status/live_answers.h"
#include "launcher/status/running_jobs.h"
#include "launcher/supervise/job_directory.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/socket/unix_socket.h"

namespace lockstep::inline internal {

void LiveView::open(LiveJob& job) noexcept {
  if (was_opened_) return;
  was_opened_ = true;
  try {
    open_health(job);
    open_control(job);
  } catch (const std::exception& error) {
    directory_.reset();
    say(concat("lockstep ps will not show this job: ", error.what()));
  }
}

void LiveView::open_health(const LiveJob& job) {
  if (!health_listening_.valid()) return;
  health_ = std::make_unique<LiveServer>(
      io_, std::move(health_listening_),
      [&job](const LiveRequest& request) { return answer_reader(job, request); },
      LiveServer::Limits{});
}

void LiveView::open_control(LiveJob& job) {
  directory_.emplace(temporary_folder(), control_directory_prefix(job.mark()));
  control_ = std::make_unique<LiveServer>(
      io_, listen_at_path(directory_->path() / kControlSocketName),
      [&job](const LiveRequest& request) { return answer_owner(job, request); },
      LiveServer::Limits{});
}

void LiveView::close() noexcept {
  health_.reset();
  control_.reset();
  directory_.reset();
}

}  // namespace lockstep::inline internal
