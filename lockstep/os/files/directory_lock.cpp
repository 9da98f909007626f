#include "lockstep/os/files/directory_lock.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <map>
#include <system_error>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/base/internal/random_id.h"
#include "lockstep/os/machine/machine.h"

namespace lockstep::inline internal {
namespace {

constexpr const char* kLockFile = ".lock";

constexpr std::chrono::milliseconds kPause{50};

// The same in all processes of a job, on all of its machines, and in no other. The launcher's mark
// is of one machine; where there are several, it ends with what they have in common.
std::string own_job() {
  static const std::string own = random_id();
  const std::string mark = env::text(env::kJobMark).value_or(own);
  const std::size_t dot = mark.find('.');
  return dot == std::string::npos ? mark : mark.substr(dot + 1);
}

struct LockOwner {
  std::string job;
  std::string process;  ///< for people
};

LockOwner owner_in(int fd) {
  std::array<char, 1024> bytes;
  const ssize_t count = ::pread(fd, bytes.data(), bytes.size(), 0);
  const std::string text(bytes.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  const std::size_t end = text.find('\n');
  if (end == std::string::npos) return {.job = {}, .process = "a process that has just begun"};
  return {.job = text.substr(0, end),
          .process = text.substr(end + 1, text.find('\n', end + 1) - end - 1)};
}

std::string own_process() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> time{};
  std::strftime(time.data(), time.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return concat("process ", ::getpid(), " on ", host_name(), ", since ", time.data());
}

[[noreturn]] void refuse(const std::filesystem::path& file, const char* what,
                         const std::string& process) {
  throw UsageError(concat(file.parent_path().string(), " ", what, " ", process,
                          "; wait for its end, or choose another folder"));
}

using FileId = std::pair<dev_t, ino_t>;

struct HeldLocks {
  Mutex mutex;
  std::map<FileId, std::weak_ptr<DirectoryLock>> by_file LOCKSTEP_GUARDED_BY(mutex);
};

HeldLocks& held_locks() {
  static HeldLocks held;
  return held;
}

}  // namespace

DirectoryLock::DirectoryLock(std::filesystem::path file, UniqueFd fd)
    : file_(std::move(file)), fd_(std::move(fd)) {}

std::shared_ptr<DirectoryLock> DirectoryLock::take(const std::filesystem::path& directory,
                                                   std::chrono::milliseconds own_job_wait) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const std::filesystem::path file = directory / kLockFile;
  constexpr int kMode = 0644;
  struct stat status {};
  UniqueFd fd;
  if (!error) {
    fd = UniqueFd(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kMode));
    if (!fd.valid() || ::fstat(fd.get(), &status) != 0) {
      error = std::error_code(errno, std::generic_category());
    }
  }
  if (error) {
    throw SystemError(concat("lock ", directory), error.value(),
                      "choose a folder that this process may write");
  }
  HeldLocks& held = held_locks();
  const MutexLock guard(held.mutex);
  auto& known = held.by_file[{status.st_dev, status.st_ino}];
  if (auto lock = known.lock()) return lock;
  std::shared_ptr<DirectoryLock> taken(new DirectoryLock(file, std::move(fd)));
  taken->lock(own_job_wait);
  known = taken;
  return taken;
}

void DirectoryLock::lock(std::chrono::milliseconds own_job_wait) {
  const Deadline deadline = Deadline::after(own_job_wait);
  for (bool has_said = false; !try_lock();) {
    const LockOwner owner = owner_in(fd_.get());
    if (owner.job != own_job()) refuse(file_, "is in use by another job:", owner.process);
    if (deadline.passed()) {
      log(LogLevel::kWarning, concat(file_.string(), ": ", owner.process,
                                     ", of this job, still holds the lock; continuing without it"));
      break;
    }
    if (!std::exchange(has_said, true)) {
      log(LogLevel::kInfo, concat("wait up to ", own_job_wait.count(), " ms for ", file_.string(),
                                  ": ", owner.process, ", of this job, holds the lock"));
    }
    std::this_thread::sleep_for(std::min(kPause, deadline.remaining()));
  }
  write_owner();
}

bool DirectoryLock::try_lock() {
  const MutexLock guard(mutex_);
  if (is_settled_) return true;
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    if (error == EWOULDBLOCK || error == EINTR) return false;
    log(LogLevel::kWarning,
        concat("lock ", file_.string(), ": ", std::generic_category().message(error),
               "; another job in this folder will be detected only at a save"));
  }
  is_settled_ = true;
  return true;
}

void DirectoryLock::write_owner() {
  const std::string text = concat(own_job(), "\n", own_process(), "\n");
  if (::pwrite(fd_.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()) ||
      ::ftruncate(fd_.get(), static_cast<off_t>(text.size())) != 0) {
    throw SystemError(concat("write ", file_), errno, "free disk space, or choose another folder");
  }
}

void DirectoryLock::check() {
  try_lock();
  const UniqueFd fd(::open(file_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return;  // Deleted, by hand.
  const LockOwner owner = owner_in(fd.get());
  if (owner.job != own_job()) refuse(file_, "was taken over by another job:", owner.process);
}

}  // namespace lockstep::inline internal
