#include "launcher/supervise/job_processes.h"

#include <utility>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/os/machine/control_groups.h"
#include "lockstep/os/process/child_process.h"
#include "lockstep/os/process/kill_processes.h"

namespace lockstep::inline internal {

JobProcesses::JobProcesses(std::string mark, const GuardedFiles& files)
    : mark_(std::move(mark)),
      place_(place_for_control_group(concat("lockstep-", mark_))),
      guard_(mark_line(), files, place_),
      control_group_(make_control_group(place_)) {
  adopt_orphans();
}

JobProcesses::~JobProcesses() {
  if (control_group_.valid()) dissolve_control_group(place_);
}

std::string JobProcesses::mark_line() const {
  return concat(env::kJobMark.name, "=", mark_);
}

void JobProcesses::kill_what_is_left() noexcept {
  kill_marked_processes(mark_line());
  kill_children_except(guard_.pid());
}

}  // namespace lockstep::inline internal
