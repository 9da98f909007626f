#include "lockstep/launch/job_processes.h"

#include <utility>

#include "lockstep/base/concat.h"
#include "lockstep/base/env.h"
#include "lockstep/os/adopted_processes.h"
#include "lockstep/os/child_process.h"
#include "lockstep/os/marked_processes.h"
#include "lockstep/os/own_control_group.h"

namespace lockstep {

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

}  // namespace lockstep
