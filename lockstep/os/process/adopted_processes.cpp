#include "lockstep/os/process/adopted_processes.h"

#include <csignal>
#include <fstream>

#include <unistd.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/os/process/child_process.h"

namespace lockstep::inline internal {

void kill_children_except(pid_t kept) noexcept try {
  const std::string list = concat("/proc/self/task/", ::getpid(), "/children");
  const Deadline deadline = Deadline::after(kTimeToDie);
  while (!deadline.passed()) {
    while (reap_any_child()) {
    }
    bool found = false;
    std::ifstream children(list);
    for (pid_t child = 0; children >> child;) {
      if (child == kept) continue;
      ::kill(child, SIGKILL);  // It keeps its number until it is reaped, here.
      found = true;
    }
    if (!found) return;
    ::usleep(1000);  // for those that are dying, and whose own children come next
  }
} catch (...) {
  // No memory: nothing more can be done.
}

}  // namespace lockstep::inline internal
