#include "lockstep/os/directory_lock.h"

#include <array>
#include <cerrno>
#include <ctime>
#include <map>
#include <mutex>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/random_id.h"
#include "lockstep/os/machine.h"

namespace lockstep {
namespace {

constexpr const char* kLockFile = ".lock";

// The same in all processes of a job, and in no other: what must not exclude each other.
std::string own_job() {
  static const std::string own = random_id();
  return env::text(env::kJobMark).value_or(own);
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
  std::mutex mutex;
  std::map<FileId, std::weak_ptr<DirectoryLock>> by_file;
};

HeldLocks& held_locks() {
  static HeldLocks held;
  return held;
}

}  // namespace

DirectoryLock::DirectoryLock(std::filesystem::path file, UniqueFd fd)
    : file_(std::move(file)), fd_(std::move(fd)) {}

std::shared_ptr<DirectoryLock> DirectoryLock::take(const std::filesystem::path& directory) {
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
  const std::lock_guard guard(held.mutex);
  auto& known = held.by_file[{status.st_dev, status.st_ino}];
  if (auto lock = known.lock()) return lock;
  const std::shared_ptr<DirectoryLock> taken(new DirectoryLock(file, std::move(fd)));
  taken->lock();
  known = taken;
  return taken;
}

void DirectoryLock::lock() {
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    if (error == EWOULDBLOCK) {
      const LockOwner owner = owner_in(fd_.get());
      // A rank of this job, which has another rank's place now, or is about to end.
      if (owner.job != own_job()) refuse(file_, "is in use by another job:", owner.process);
    } else {
      log(LogLevel::kWarning,
          concat("lock ", file_.string(), ": ", std::generic_category().message(error),
                 "; a second job in this folder is noticed at a save only"));
    }
  }
  const std::string text = concat(own_job(), "\n", own_process(), "\n");
  if (::pwrite(fd_.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()) ||
      ::ftruncate(fd_.get(), static_cast<off_t>(text.size())) != 0) {
    throw SystemError(concat("write ", file_), errno, "make room, or choose another folder");
  }
}

void DirectoryLock::check() const {
  const UniqueFd fd(::open(file_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return;  // Deleted, by hand.
  const LockOwner owner = owner_in(fd.get());
  if (owner.job != own_job()) refuse(file_, "was taken over by another job:", owner.process);
}

}  // namespace lockstep
