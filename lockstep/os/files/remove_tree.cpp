#include "lockstep/os/files/remove_tree.h"

#include <cerrno>
#include <memory>
#include <string_view>

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

namespace lockstep::inline internal {
namespace {

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};
using Directory = std::unique_ptr<DIR, CloseDirectory>;

// An entry that another process has removed is no error.
std::error_code last_error() {
  return errno == ENOENT ? std::error_code() : std::error_code(errno, std::generic_category());
}

std::error_code remove_entry(int parent, const char* name);

std::error_code remove_entries(DIR& directory) {
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(&directory);
    if (entry == nullptr) return last_error();
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (const std::error_code error = remove_entry(::dirfd(&directory), entry->d_name)) return error;
  }
}

// The directory is opened without following links and its entries are named relative to it, so that a
// directory which becomes a link meanwhile leads nowhere else.
std::error_code remove_directory(int parent, const char* name) {
  const int opened = ::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (opened < 0) return last_error();
  const Directory directory(::fdopendir(opened));
  if (!directory) {
    const std::error_code error = last_error();
    ::close(opened);
    return error;
  }
  if (const std::error_code error = remove_entries(*directory)) return error;
  return ::unlinkat(parent, name, AT_REMOVEDIR) == 0 ? std::error_code() : last_error();
}

std::error_code remove_entry(int parent, const char* name) {
  if (::unlinkat(parent, name, 0) == 0) return {};
  return errno == EISDIR ? remove_directory(parent, name) : last_error();
}

}  // namespace

void remove_tree(const std::filesystem::path& path, std::error_code& error) {
  error = remove_entry(AT_FDCWD, path.c_str());
}

}  // namespace lockstep::inline internal
