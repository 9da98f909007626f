#include "lockstep/os/process/kill_processes.h"

#include <cctype>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/unique_fd.h"
#include "lockstep/os/process/child_process.h"

namespace lockstep::inline internal {
namespace {

std::string read_whole(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char piece[4096];
  for (ssize_t size = 0; file.valid() && (size = ::read(file.get(), piece, sizeof piece)) > 0;) {
    text.append(piece, static_cast<std::size_t>(size));
  }
  return text;
}

bool has_line(const std::string& environment, const std::string& line) {
  const std::string zero(1, '\0');
  return (zero + environment).find(zero + line + zero) != std::string::npos;
}

// While it executes another program a process has a file, but neither arguments nor environment.
// Kernel threads and the dead have no file, those of other users none that may be read.
bool is_in_exec(pid_t process) {
  char target[1];
  return read_whole(concat("/proc/", process, "/cmdline")).empty() &&
         ::readlink(concat("/proc/", process, "/exe").c_str(), target, sizeof target) > 0;
}

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

std::set<pid_t> processes() {
  std::set<pid_t> found;
  const std::unique_ptr<DIR, CloseFolder> folder(::opendir("/proc"));
  while (folder) {
    const dirent* const entry = ::readdir(folder.get());
    if (entry == nullptr) break;
    if (std::isdigit(static_cast<unsigned char>(entry->d_name[0])) != 0) {
      found.insert(std::atoi(entry->d_name));
    }
  }
  return found;
}

}  // namespace

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

void kill_marked_processes(const std::string& line) noexcept try {
  const pid_t self = ::getpid();
  // Again and again: one may have started another since the last look, or may not show yet whose it
  // is.
  const Deadline deadline = Deadline::after(kTimeToDie);
  while (!deadline.passed()) {
    bool found = false;
    for (const pid_t process : processes()) {
      if (process == self) continue;
      const UniqueFd handle = find_process(process);  // before the look: numbers are given again
      if (!handle.valid()) continue;
      const std::string environment = read_whole(concat("/proc/", process, "/environ"));
      if (has_line(environment, line)) found = kill_process(handle) || found;
      if (environment.empty() && is_in_exec(process)) found = true;
    }
    if (!found) return;
    ::usleep(1000);  // for those that are dying
  }
} catch (...) {
  // No memory: nothing more can be done.
}

}  // namespace lockstep::inline internal
