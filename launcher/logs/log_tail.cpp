#include "launcher/logs/log_tail.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <iterator>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/logs/line_prefixer.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

constexpr std::size_t kTurnBytes = 64 * 1024;

struct Stream {
  const TailedLog* log;
  UniqueFd file;
  LinePrefixer lines;
  int console_fd;
  UniqueFd copy;
  /// Once no worker writes any more: what is still to be shown.
  std::optional<std::uint64_t> bytes_left{};

  int target() const { return copy.valid() ? copy.get() : console_fd; }
};

Stream open_stream_of(const TailedLog& log) {
  Stream stream{&log, UniqueFd(::open(log.file.c_str(), O_RDONLY | O_CLOEXEC)),
                LinePrefixer(log.prefix), log.console_fd, UniqueFd()};
  if (log.copy.empty()) return stream;
  stream.lines = LinePrefixer(log.prefix, log.filter);
  stream.console_fd = -1;
  stream.copy = UniqueFd(::open(log.copy.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  return stream;
}

// This process exists to wait for the console, so it writes without a deadline.
// False when nobody reads any more.
bool show(int console_fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(console_fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {
      // Whoever shares the console has made it non-blocking.
      pollfd ready{console_fd, POLLOUT, 0};
      ::poll(&ready, 1, -1);
      continue;
    }
    if (written < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

// Shows the lines of the next chunk, so that no stream waits for more than one of each other.
// `more` is set where there may be another. False when nobody reads any more.
bool show_next_lines(Stream& stream, bool& more) {
  std::array<char, kTurnBytes> chunk{};
  const std::size_t most =
      std::min<std::uint64_t>(chunk.size(), stream.bytes_left.value_or(chunk.size()));
  ssize_t size = 0;
  do {
    size = ::read(stream.file.get(), chunk.data(), most);
  } while (size < 0 && errno == EINTR);
  if (size <= 0) return true;
  const std::string_view text(chunk.data(), static_cast<std::size_t>(size));
  if (stream.bytes_left) *stream.bytes_left -= text.size();
  more = more || !stream.bytes_left || *stream.bytes_left > 0;
  return show(stream.target(), stream.lines.feed(text));
}

// Where the first line after this place begins, if one does in the next chunk; else the place.
std::uint64_t next_line(int fd, std::uint64_t place) {
  std::array<char, kTurnBytes> chunk{};
  const ssize_t size = ::pread(fd, chunk.data(), chunk.size(), static_cast<off_t>(place));
  if (size <= 0) return place;
  const auto newline = std::string_view(chunk.data(), static_cast<std::size_t>(size)).find('\n');
  return newline == std::string_view::npos ? place : place + newline + 1;
}

// No worker writes any more. The console has the end of each stream, where errors are, and not all
// that a worker wrote faster than it was read: the next start would wait for that.
bool keep_the_end(Stream& stream) {
  struct stat info {};
  const off_t shown = ::lseek(stream.file.get(), 0, SEEK_CUR);
  if (::fstat(stream.file.get(), &info) != 0 || shown < 0) return true;
  const auto size = static_cast<std::uint64_t>(info.st_size);
  auto begin = std::min(static_cast<std::uint64_t>(shown), size);
  bool has_reader = true;
  if (!stream.copy.valid() && size - begin > LogTail::kMostBytesLeft) {
    const std::uint64_t place = next_line(stream.file.get(), size - LogTail::kMostBytesLeft);
    has_reader = show(stream.target(), stream.lines.flush()) &&
                 show(STDERR_FILENO,
                      concat("lockstep: ", place - begin, " bytes of ", stream.log->file.string(),
                             " are not shown here; the file has all\n"));
    begin = place;
    ::lseek(stream.file.get(), static_cast<off_t>(begin), SEEK_SET);
  }
  stream.bytes_left = size - begin;
  return has_reader;
}

// Waits until a file was written to, or not at all. False when the launcher wants the tail to end.
bool wait_for_change(int control_fd, int changes_fd, bool has_time) {
  // Without inotify (its instances are few and shared by all of a user's programs) files are looked
  // at in torchrun's interval.
  constexpr int kLookIntervalMs = 100;
  std::array<pollfd, 2> ready{{{control_fd, POLLIN, 0}, {changes_fd, POLLIN, 0}}};
  const int timeout = !has_time ? 0 : changes_fd >= 0 ? -1 : kLookIntervalMs;
  while (::poll(ready.data(), ready.size(), timeout) < 0 && errno == EINTR) {
  }
  if (ready[0].revents != 0) return false;
  alignas(inotify_event) std::array<char, 4096> events{};
  while (::read(changes_fd, events.data(), events.size()) > 0) {
  }
  return true;
}

void tail(const std::vector<TailedLog>& logs, int control_fd) {
  close_files_from(STDERR_FILENO + 1, control_fd);
  const UniqueFd changes(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  std::vector<Stream> streams;
  for (const TailedLog& log : logs) {
    if (changes.valid()) ::inotify_add_watch(changes.get(), log.file.c_str(), IN_MODIFY);
    streams.push_back(open_stream_of(log));
  }
  // What was written before a watch began is no change to it, so each look comes before a wait; the
  // last comes after the launcher has said that no worker writes any more.
  for (bool is_end = false; !streams.empty();) {
    bool more = false;
    std::erase_if(streams, [&](Stream& stream) { return !show_next_lines(stream, more); });
    if (is_end && !more) break;
    if (is_end || wait_for_change(control_fd, changes.get(), !more)) continue;
    is_end = true;
    std::erase_if(streams, [](Stream& stream) { return !keep_the_end(stream); });
  }
  for (Stream& stream : streams) show(stream.target(), stream.lines.flush());
}

std::vector<TailedLog> only(bool copies, const std::vector<TailedLog>& logs) {
  std::vector<TailedLog> result;
  std::copy_if(logs.begin(), logs.end(), std::back_inserter(result),
               [&](const TailedLog& log) { return log.copy.empty() != copies; });
  return result;
}

}  // namespace

LogTail::LogTail(const std::vector<TailedLog>& logs)
    : process_("lockstep-tail", [&](int control_fd) { tail(only(false, logs), control_fd); }) {
  const std::vector<TailedLog> copies = only(true, logs);
  if (copies.empty()) return;
  copier_.emplace("lockstep-copy", [&](int control_fd) { tail(copies, control_fd); });
}

bool LogTail::ended() const {
  return process_.ended() && (!copier_ || copier_->ended());
}

void LogTail::request_end() {
  process_.request_end();
  if (copier_) copier_->request_end();
}

LogTail::Result LogTail::finish(Deadline deadline, SignalFd& signals,
                                const std::function<void()>& wait) {
  request_end();
  while (!ended()) {
    if (deadline.passed()) return {.complete = false};
    while (const auto signal = signals.next()) {
      if (*signal != SIGCHLD) return {.complete = false, .stop_signal = *signal};
    }
    wait();
  }
  return {};
}

}  // namespace lockstep::inline internal
