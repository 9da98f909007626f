#include "lockstep/snapshot/checkpoint/new_folder.h"

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/atomic_file.h"

namespace lockstep::inline internal {
namespace {

/// Without a '/' at its end, which would make its last name empty.
std::filesystem::path named(const std::filesystem::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

std::filesystem::path folder_around(const std::filesystem::path& path) {
  const std::filesystem::path parent = path.parent_path();
  return parent.empty() ? "." : parent;
}

}  // namespace

NewFolder::NewFolder(std::filesystem::path target)
    : target_(named(target)),
      temporary_(folder_around(target_), concat(".", target_.filename().string(), ".partial-")),
      path_(temporary_.path() / target_.filename()) {
  if (::mkdir(path_.c_str(), 0777) != 0) throw SystemError(concat("make ", path_.string()), errno);
}

void NewFolder::commit(bool replaces) {
  sync_directory(path_);
  const auto rename_with = [&](unsigned flags) {
    return ::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target_.c_str(), flags) == 0;
  };
  std::error_code error;
  const bool is_moved =
      rename_with(RENAME_NOREPLACE) ||
      // A file system without such renames.
      (errno == EINVAL && !std::filesystem::exists(target_, error) && rename_with(0)) ||
      // Both change places at once, and the destructor removes the old one.
      (errno == EEXIST && replaces && rename_with(RENAME_EXCHANGE));
  if (!is_moved) {
    throw SystemError(concat("rename ", path_.string(), " to ", target_.string()), errno);
  }
  sync_directory(folder_around(target_));
}

}  // namespace lockstep::inline internal
