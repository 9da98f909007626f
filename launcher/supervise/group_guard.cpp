#include "launcher/supervise/group_guard.h"

#include <cerrno>
#include <csignal>
#include <set>
#include <system_error>

#include <unistd.h>

#include "lockstep/os/files/pipe.h"
#include "lockstep/os/files/remove_tree.h"
#include "lockstep/os/machine/control_groups.h"
#include "lockstep/os/process/child_process.h"
#include "lockstep/os/process/kill_processes.h"

namespace lockstep::inline internal {
namespace {

namespace fs = std::filesystem;

// Nothing but the guard's own death keeps it from reading.
constexpr std::chrono::milliseconds kGuardPatience{1000};

// A group is announced as its number and withdrawn as its negative; the farewell of a launcher that
// ends by itself.
constexpr pid_t kFarewell = 0;

void remove_files(const GuardedFiles& files) {
  if (files.prefix.empty()) return;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(files.folder, error)) {
    std::error_code ignored;
    if (entry.path().filename().string().starts_with(files.prefix)) {
      remove_tree(entry.path(), ignored);
    }
  }
}

void guard_groups(int control_fd, const std::string& mark, const GuardedFiles& files,
                  const fs::path& control_group) {
  // The guard must not keep a terminal, a pipeline or a port open.
  close_files_from(0, control_fd);
  std::set<pid_t> groups;
  bool ended_well = false;
  for (;;) {
    pid_t message = 0;
    const ssize_t size = ::read(control_fd, &message, sizeof(message));
    if (size < 0 && errno == EINTR) continue;
    if (size != sizeof(message)) break;
    if (message == kFarewell) {
      ended_well = groups.empty();
    } else if (message > 0) {
      groups.insert(message);
    } else {
      groups.erase(-message);
    }
  }
  // A launcher that was killed may have started a worker that it had not announced yet.
  if (!ended_well) {
    kill_control_group(control_group);
    for (const pid_t group : groups) signal_group(group, SIGKILL);
    kill_marked_processes(mark);
  }
  remove_files(files);
}

void send(const HelperProcess& process, pid_t message) {
  write_all(process.control_fd(), {reinterpret_cast<const char*>(&message), sizeof(message)},
            Deadline::after(kGuardPatience));
}

}  // namespace

GroupGuard::GroupGuard(const std::string& mark, const GuardedFiles& files,
                       const fs::path& control_group)
    : process_("lockstep-guard",
               [&](int control_fd) { guard_groups(control_fd, mark, files, control_group); }) {}

GroupGuard::~GroupGuard() {
  try {
    send(process_, kFarewell);
  } catch (...) {
    // The guard has ended: nothing is to be told.
  }
  process_.finish(Deadline::after(kGuardPatience));
}

void GroupGuard::add(pid_t group) {
  send(process_, group);
}

void GroupGuard::remove(pid_t group) {
  send(process_, -group);
}

}  // namespace lockstep::inline internal
