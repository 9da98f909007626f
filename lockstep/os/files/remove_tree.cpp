#include "lockstep/os/files/remove_tree.h"

#include <cerrno>
#include <cstdio>

#include <ftw.h>

namespace lockstep::inline internal {
namespace {

constexpr int kMostOpenDirectories = 16;

int remove_entry(const char* path, const struct stat*, int, struct FTW*) {
  return ::remove(path);
}

}  // namespace

void remove_tree(const std::filesystem::path& path, std::error_code& error) {
  error.clear();
  if (::nftw(path.c_str(), &remove_entry, kMostOpenDirectories, FTW_DEPTH | FTW_PHYS) == 0) return;
  if (errno != ENOENT) error = std::error_code(errno, std::generic_category());
}

}  // namespace lockstep::inline internal
