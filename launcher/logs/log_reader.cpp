#include "launcher/logs/log_reader.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/logs/worker_logs.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"

namespace lockstep::inline internal {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kChunkBytes = 64 * 1024;

// Of the directories whose names are `beginning` and a number, the numbers in order.
std::vector<int> numbers_of_directories(const fs::path& parent, const std::string& beginning) {
  std::vector<int> numbers;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    const std::string name = entry.path().filename().string();
    std::error_code ignored;
    if (!name.starts_with(beginning) || !entry.is_directory(ignored)) continue;
    if (const auto number = parse_number<int>(name.substr(beginning.size()))) {
      numbers.push_back(*number);
    }
  }
  std::ranges::sort(numbers);
  return numbers;
}

}  // namespace

std::vector<int> attempts_in(const fs::path& directory) {
  return numbers_of_directories(directory, "attempt_");
}

std::uint64_t start_of_last_lines(int fd, std::uint64_t lines) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) throw SystemError("look at a log", errno);
  const auto size = static_cast<std::uint64_t>(info.st_size);
  std::array<char, kChunkBytes> chunk{};
  std::uint64_t ends = 0;
  for (std::uint64_t end = size; end > 0;) {
    const std::uint64_t begin = end - std::min<std::uint64_t>(end, chunk.size());
    const ssize_t count = ::pread(fd, chunk.data(), end - begin, static_cast<off_t>(begin));
    if (count < 0) throw SystemError("read a log", errno);
    for (auto at = static_cast<std::uint64_t>(count); at > 0; --at) {
      // The end of the last line begins none.
      if (chunk[at - 1] != '\n' || begin + at == size) continue;
      if (++ends >= lines) return lines == 0 ? size : begin + at;
    }
    end = begin;
  }
  return lines == 0 ? size : 0;
}

void LogReader::look() {
  const std::vector<int> attempts = attempts_in(directory_);
  for (const int attempt : attempts) {
    const bool is_chosen = choice_.attempt ? attempt == *choice_.attempt
                           : attempt_      ? attempt >= *attempt_
                                           : attempt == attempts.back();
    if (is_chosen) read_attempt(attempt);
  }
  is_first_look_ = false;
}

void LogReader::finish() {
  is_last_look_ = true;
  look();
}

void LogReader::read_attempt(int attempt) {
  if (attempt_ != attempt) {
    // All that an attempt wrote is there before the next one begins.
    read_all(true);
    files_.clear();
    attempt_ = attempt;
  }
  const bool had_none = files_.empty();
  open_new_files(attempt);
  if (had_none && !files_.empty()) sink_.attempt(attempt);
  read_all(is_last_look_);
}

void LogReader::open_new_files(int attempt) {
  const fs::path parent = worker_directory(directory_, attempt, 0).parent_path();
  for (const int local_rank : numbers_of_directories(parent, "")) {
    const auto& wanted = choice_.local_ranks;
    if (!wanted.empty() && std::ranges::find(wanted, local_rank) == wanted.end()) continue;
    for (const bool is_stderr : {false, true}) {
      if (files_.contains({local_rank, is_stderr})) continue;
      const fs::path path = worker_directory(directory_, attempt, local_rank) /
                            (is_stderr ? "stderr.log" : "stdout.log");
      // O_NONBLOCK: opening a FIFO must not wait for its writer.
      UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
      if (!fd.valid() && errno == ENOENT) continue;
      if (!fd.valid()) throw SystemError(concat("read the log ", path.string()), errno);
      if (is_first_look_ && choice_.last_lines) {
        const auto start = start_of_last_lines(fd.get(), *choice_.last_lines);
        ::lseek(fd.get(), static_cast<off_t>(start), SEEK_SET);
      }
      found_any_ = true;
      files_.emplace(std::pair(local_rank, is_stderr),
                     File{std::move(fd), is_stderr, LinePrefixer(sink_.prefix(local_rank))});
    }
  }
}

// A file that is written faster than it is read ends where it ended at first.
void LogReader::read_all(bool to_the_end) {
  for (auto& [place, file] : files_) {
    struct stat info {};
    const off_t at = ::lseek(file.fd.get(), 0, SEEK_CUR);
    if (at < 0 || ::fstat(file.fd.get(), &info) != 0) throw SystemError("look at a log", errno);
    file.bytes_left = static_cast<std::uint64_t>(std::max<off_t>(info.st_size - at, 0));
  }
  for (bool more = true; more;) {
    more = false;
    for (auto& [place, file] : files_) {
      if (file.bytes_left > 0) read_chunk(file);
      if (file.bytes_left > 0)
        more = true;
      else if (to_the_end)
        flush(file);
    }
  }
}

void LogReader::read_chunk(File& file) {
  std::array<char, kChunkBytes> chunk{};
  ssize_t size = 0;
  do {
    size =
        ::read(file.fd.get(), chunk.data(), std::min<std::uint64_t>(chunk.size(), file.bytes_left));
  } while (size < 0 && errno == EINTR);
  if (size < 0) throw SystemError("read a log", errno);
  file.bytes_left = size == 0 ? 0 : file.bytes_left - static_cast<std::uint64_t>(size);
  const std::string lines = file.lines.feed({chunk.data(), static_cast<std::size_t>(size)});
  if (!lines.empty()) sink_.lines(file.is_stderr, lines);
}

void LogReader::flush(File& file) {
  const std::string line = file.lines.flush();
  if (!line.empty()) sink_.lines(file.is_stderr, line);
}

}  // namespace lockstep::inline internal
