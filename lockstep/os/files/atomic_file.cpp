#include "lockstep/os/files/atomic_file.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/base/internal/random_id.h"

namespace lockstep::inline internal {
namespace {

constexpr std::string_view kTemporaryPrefix = ".lockstep-";
constexpr std::string_view kTemporarySuffix = ".tmp";
/// Names are random 64-bit numbers: a second try is rare, a tenth means that something else is
/// wrong.
constexpr int kNameAttempts = 10;
/// Linux transfers at most 2 GiB a call, and some file systems fail beyond 1 GiB.
constexpr std::size_t kWriteCallBytes = std::size_t{1} << 30;

std::filesystem::path directory_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

[[noreturn]] void fail(int errno_value, const std::string& operation) {
  const bool full = errno_value == ENOSPC || errno_value == EDQUOT || errno_value == EFBIG;
  throw SystemError(operation, errno_value,
                    concat(full ? "free some space or choose another directory"
                                : "check the directory and its permissions",
                           "; an existing file is unchanged"));
}

std::string random_name() {
  return concat(kTemporaryPrefix, random_id().substr(0, 16), kTemporarySuffix);
}

bool is_temporary_name(std::string_view name) {
  return name.size() == kTemporaryPrefix.size() + 16 + kTemporarySuffix.size() &&
         name.starts_with(kTemporaryPrefix) && name.ends_with(kTemporarySuffix);
}

/// False when another process holds the lock. On file systems without locks it is true for the
/// writer of a file and false for those who would remove it.
bool try_lock(int fd, bool without_locks) {
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
  return errno != EWOULDBLOCK && without_locks;
}

/// Best effort: a temporary that cannot be removed costs space, never the new file.
void remove_abandoned_temporaries(const std::filesystem::path& directory) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!is_temporary_name(entry->path().filename().native())) continue;
    const UniqueFd fd(::open(entry->path().c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
    if (fd.valid() && try_lock(fd.get(), false)) ::unlink(entry->path().c_str());
  }
}

/// True unless somebody took the new file for abandoned between its creation and its lock.
bool lock_new_file(int fd) {
  struct stat status {};
  return try_lock(fd, true) && ::fstat(fd, &status) == 0 && status.st_nlink > 0;
}

void flush_to_disk(int fd, const std::filesystem::path& path) {
  while (failpoint_fails("file.sync") || ::fsync(fd) != 0) {
    if (const int reason = errno; reason != EINTR) fail(reason, concat("fsync ", path));
  }
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  const std::filesystem::path directory = directory_of(path_);
  remove_abandoned_temporaries(directory);
  int reason = EEXIST;
  for (int attempt = 0; attempt < kNameAttempts; ++attempt) {
    std::filesystem::path candidate = directory / random_name();
    UniqueFd fd;
    if (!failpoint_fails("file.create")) {
      fd.reset(::open(candidate.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    }
    if (!fd.valid()) {
      reason = errno;
      if (reason == EEXIST || reason == EINTR) continue;
      break;
    }
    if (lock_new_file(fd.get())) {
      fd_ = std::move(fd);
      temporary_path_ = std::move(candidate);
      failpoint("file.created");
      return;
    }
  }
  fail(reason, concat("create a temporary file for ", path_));
}

AtomicFile::~AtomicFile() {
  if (!temporary_path_.empty()) ::unlink(temporary_path_.c_str());
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const auto part = failpoint_at_write("file.write", std::min(bytes, kWriteCallBytes));
    const ssize_t written = part ? ::write(fd_.get(), next, *part) : -1;
    if (written < 0) {
      const int reason = errno;
      if (reason == EINTR) continue;
      fail(reason, concat("write ", bytes, " bytes at offset ", written_bytes_, " of ", path_));
    }
    next += written;
    bytes -= static_cast<std::size_t>(written);
    written_bytes_ += static_cast<std::uint64_t>(written);
  }
}

void AtomicFile::commit() {
  flush_to_disk(fd_.get(), path_);
  failpoint("file.synced");
  if (failpoint_fails("file.rename") || ::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    const int reason = errno;
    fail(reason, concat("rename a temporary file to ", path_));
  }
  temporary_path_.clear();
  failpoint("file.renamed");
  // The rename itself is on disk only when the directory is.
  sync_directory(directory_of(path_));
  fd_.reset();
  failpoint("file.done");
}

void sync_directory(const std::filesystem::path& directory) {
  const UniqueFd directory_fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory_fd.valid() || failpoint_fails("file.sync_directory") ||
      ::fsync(directory_fd.get()) != 0) {
    const int reason = errno;
    // EINVAL: this file system has no fsync of directories.
    if (reason != EINVAL) throw SystemError(concat("fsync directory ", directory), reason);
  }
}

}  // namespace lockstep::inline internal
