#include "lockstep/os/staged_directory.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/base/failpoint.h"
#include "lockstep/os/atomic_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// A new directory is lost only to a process that took it for abandoned before it was locked: a
/// second time is rare, a tenth means that something else is wrong.
constexpr int kStagingAttempts = 10;

std::string staging_prefix(const fs::path& target) {
  return concat(".", target.filename().string(), ".lockstep-");
}

UniqueFd open_directory(const fs::path& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

bool lock_directory(const UniqueFd& fd) {
  return fd.valid() && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
}

// A target that is moved aside, where it cannot be exchanged in one call.
constexpr std::string_view kMovedAside = "-old";

bool is_taken(int rename_errno) {
  return rename_errno == ENOTEMPTY || rename_errno == EEXIST;
}

// Best effort: what cannot be removed costs space, never the new directory. Who moves a target
// aside holds its lock until the new one has the path.
void tidy(const fs::path& target) {
  const std::string prefix = staging_prefix(target);
  std::error_code error;
  for (fs::directory_iterator entry(target.parent_path(), error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(prefix)) continue;
    const UniqueFd fd = open_directory(entry->path());
    if (!lock_directory(fd)) continue;
    if (name.ends_with(kMovedAside)) {
      if (::rename(entry->path().c_str(), target.c_str()) == 0) continue;
      if (!is_taken(errno)) continue;
    }
    std::error_code ignored;
    fs::remove_all(entry->path(), ignored);
  }
}

// False when somebody took the new directory for abandoned between its creation and its lock.
bool still_there(const UniqueFd& fd) {
  struct stat status {};
  return ::fstat(fd.get(), &status) == 0 && status.st_nlink > 0;
}

void rename_directory(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return;
  throw SystemError(concat("rename ", from.string(), " to ", to.string()), errno);
}

// False where the file system or the kernel cannot.
bool exchange(const fs::path& a, const fs::path& b) {
  return !failpoint_fails("directory.exchange") &&
         ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
}

// Without an exchange: between the two renames the target is away, and tidy() brings it back.
void replace_in_two(const fs::path& staged, const fs::path& target) {
  const UniqueFd old_fd = open_directory(target);
  lock_directory(old_fd);
  const fs::path old = concat(staged.string(), kMovedAside);
  rename_directory(target, old);
  failpoint("directory.moved");
  try {
    rename_directory(staged, target);
  } catch (const SystemError&) {
    ::rename(old.c_str(), target.c_str());
    throw;
  }
  failpoint("directory.replaced");
  std::error_code ignored;  // The next StagedDirectory tries again.
  fs::remove_all(old, ignored);
}

// What is renamed before its files are on disk may be empty after a loss of power.
void flush(const UniqueFd& directory, const fs::path& path) {
  if (::syncfs(directory.get()) != 0) throw SystemError("flush " + path.string(), errno);
}

}  // namespace

fs::path StagedDirectory::settle(const fs::path& target) {
  std::error_code error;
  const fs::path plain = target.has_filename() ? target : target.parent_path();
  fs::path settled = fs::weakly_canonical(fs::absolute(plain, error), error);
  if (error) throw SystemError("find " + target.string(), error.value());
  tidy(settled);
  return settled;
}

StagedDirectory::StagedDirectory(const fs::path& target) : target_(settle(target)) {
  std::error_code error;
  fs::create_directories(target_.parent_path(), error);
  if (error) throw SystemError("make " + target_.parent_path().string(), error.value());
  for (int attempt = 0; attempt < kStagingAttempts; ++attempt) {
    std::string name = (target_.parent_path() / (staging_prefix(target_) + "XXXXXX")).string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw SystemError("make a directory in " + target_.parent_path().string(), errno,
                        "name one that you may write to");
    }
    lock_ = open_directory(name);
    // On file systems without locks it is nobody's; others cannot lock it either.
    const bool locked = lock_directory(lock_) || errno != EWOULDBLOCK;
    if (lock_.valid() && locked && still_there(lock_)) {
      path_ = name;
      // mkdtemp makes it for this user alone; the target is an ordinary directory.
      const mode_t mask = ::umask(0);
      ::umask(mask);
      fs::permissions(path_, static_cast<fs::perms>(0777 & ~mask), error);
      return;
    }
  }
  throw SystemError("lock a directory in " + target_.parent_path().string(), EBUSY);
}

StagedDirectory::~StagedDirectory() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

bool StagedDirectory::commit(Existing existing) {
  flush(lock_, path_);
  failpoint("directory.flushed");
  // An empty directory is renamed over.
  if (::rename(path_.c_str(), target_.c_str()) == 0) {
    path_.clear();
  } else if (!is_taken(errno)) {
    throw SystemError(concat("rename ", path_.string(), " to ", target_.string()), errno);
  } else if (existing == Existing::kKeep) {
    return false;
  } else if (exchange(path_, target_)) {
    failpoint("directory.exchanged");
    std::error_code ignored;  // The next StagedDirectory tries again.
    fs::remove_all(path_, ignored);
    path_.clear();
  } else {
    replace_in_two(path_, target_);
    path_.clear();
  }
  sync_directory(target_.parent_path());
  failpoint("directory.done");
  return true;
}

}  // namespace lockstep
