#include "lockstep/os/files/append_lines.h"

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

namespace {

// Behind the last whole line; -1, with errno: it cannot be read.
off_t end_of_lines(int file, off_t end) {
  char block[4096];
  while (end > 0) {
    const off_t begin = std::max<off_t>(end - static_cast<off_t>(sizeof block), 0);
    const auto size = static_cast<std::size_t>(end - begin);
    const ssize_t got = ::pread(file, block, size, begin);
    if (got < 0) return -1;
    const std::size_t newline = std::string_view(block, static_cast<std::size_t>(got)).rfind('\n');
    if (newline != std::string_view::npos) return begin + static_cast<off_t>(newline) + 1;
    end = begin;
  }
  return 0;
}

}  // namespace

UniqueFd open_to_append_lines(const std::filesystem::path& path) {
  constexpr int kMode = 0644;
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, kMode));
  if (!file.valid()) return file;
  const off_t end = ::lseek(file.get(), 0, SEEK_END);
  if (end <= 0) return file;
  const off_t whole = end_of_lines(file.get(), end);
  if (whole == end || (whole >= 0 && ::ftruncate(file.get(), whole) == 0)) return file;
  const int error = errno;
  file.reset();
  errno = error;
  return file;
}

LineLog::LineLog(std::filesystem::path path, Words words)
    : path_(std::move(path)), words_(std::move(words)) {
  std::error_code error;
  std::filesystem::create_directories(path_.parent_path(), error);
  if (!error) {
    file_ = open_to_append_lines(path_);
    if (!file_.valid()) error = std::error_code(errno, std::generic_category());
  }
  if (error) {
    throw SystemError(concat(words_.what, " ", path_), error.value(),
                      "choose a folder that this process may write");
  }
}

void LineLog::append(const std::string& line) {
  const ssize_t written = ::write(file_.get(), line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) return;
  throw SystemError(concat(words_.what, " ", path_), written < 0 ? errno : ENOSPC,
                    words_.when_full);
}

}  // namespace lockstep::inline internal
