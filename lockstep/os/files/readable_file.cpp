#include "lockstep/os/files/readable_file.h"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/check.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

/// Linux transfers at most 2 GiB a call.
constexpr std::size_t kReadCallBytes = std::size_t{1} << 30;

}  // namespace

ReadableFile::ReadableFile(std::filesystem::path path) : path_(std::move(path)) {
  // O_NONBLOCK: opening a FIFO must not wait for its writer.
  fd_ = std::make_shared<const UniqueFd>(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!fd_->valid() || ::fstat(fd_->get(), &status) != 0) {
    const int reason = errno;
    throw SystemError(concat("open ", path_), reason,
                      "check that this process, on this machine, can read it");
  }
  if (!S_ISREG(status.st_mode)) {
    throw UsageError(concat("open ", path_, ": not a regular file; name the file itself"));
  }
  size_bytes_ = static_cast<std::uint64_t>(status.st_size);
  identity_ = {.device = status.st_dev,
               .inode = status.st_ino,
               .size_bytes = size_bytes_,
               .changed_s = status.st_mtim.tv_sec,
               .changed_ns = status.st_mtim.tv_nsec};
}

ReadableFile ReadableFile::part(std::uint64_t offset, std::uint64_t bytes) const {
  LOCKSTEP_ASSERT(offset <= size_bytes_ && bytes <= size_bytes_ - offset);
  ReadableFile part = *this;
  part.begin_bytes_ += offset;
  part.size_bytes_ = bytes;
  return part;
}

void ReadableFile::read(std::uint64_t offset, void* target, std::size_t bytes) const {
  char* next = static_cast<char*>(target);
  offset += begin_bytes_;
  while (bytes > 0) {
    const ssize_t done =
        ::pread(fd_->get(), next, std::min(bytes, kReadCallBytes), static_cast<off_t>(offset));
    if (done < 0) {
      const int reason = errno;
      if (reason == EINTR) continue;
      throw SystemError(concat("read ", bytes, " bytes at offset ", offset, " of ", path_), reason);
    }
    if (done == 0) {
      throw CorruptFile(concat("read ", path_, ": it ends at byte ", offset, ", ", bytes,
                               " bytes too early; it is truncated"));
    }
    next += done;
    offset += static_cast<std::uint64_t>(done);
    bytes -= static_cast<std::size_t>(done);
  }
}

std::string ReadableFile::text() const {
  std::string text(size_bytes_, '\0');
  read(0, text.data(), text.size());
  return text;
}

}  // namespace lockstep::inline internal
