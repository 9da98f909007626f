#include "lockstep/os/files/append_lines.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

UniqueFd open_to_append_lines(const std::filesystem::path& path) {
  constexpr int kMode = 0644;
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, kMode));
  if (!file.valid()) return file;
  const off_t end = ::lseek(file.get(), 0, SEEK_END);
  char last = '\n';
  if (end > 0 && ::pread(file.get(), &last, 1, end - 1) == 1 && last != '\n' &&
      ::write(file.get(), "\n", 1) != 1) {
    const int error = errno;
    file.reset();
    errno = error;
  }
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
