#include "lockstep/os/staged_directory.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"

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

// Best effort: what cannot be removed costs space, never the new directory.
void remove_abandoned(const fs::path& target) {
  const std::string prefix = staging_prefix(target);
  std::error_code error;
  for (fs::directory_iterator entry(target.parent_path(), error), end; !error && entry != end;
       entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(prefix)) continue;
    std::error_code ignored;
    const UniqueFd fd = open_directory(entry->path());
    if (lock_directory(fd)) fs::remove_all(entry->path(), ignored);
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

}  // namespace

StagedDirectory::StagedDirectory(const fs::path& target) {
  std::error_code error;
  const fs::path plain = target.has_filename() ? target : target.parent_path();
  target_ = fs::weakly_canonical(fs::absolute(plain, error), error);
  if (error) throw SystemError("find " + target.string(), error.value());
  fs::create_directories(target_.parent_path(), error);
  if (error) throw SystemError("make " + target_.parent_path().string(), error.value());
  remove_abandoned(target_);
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
  // An empty directory is renamed over.
  if (::rename(path_.c_str(), target_.c_str()) == 0) {
    path_.clear();
    return true;
  }
  if (errno != ENOTEMPTY && errno != EEXIST) {
    throw SystemError(concat("rename ", path_.string(), " to ", target_.string()), errno);
  }
  if (existing == Existing::kKeep) return false;
  const fs::path old = path_.string() + "-old";
  rename_directory(target_, old);
  rename_directory(path_, target_);
  path_.clear();
  std::error_code ignored;  // The next StagedDirectory tries again.
  fs::remove_all(old, ignored);
  return true;
}

}  // namespace lockstep
