#include "diagnose/verdict/python_stacks.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/os/socket/poll_timeout.h"

namespace lockstep::inline internal {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 20;

// `  File "train.py", line 12 in read_batch`
SourceLine parse_frame(std::string_view line) {
  SourceLine frame;
  const auto file = line.find('"');
  const auto end = line.rfind("\", line ");
  if (file == std::string_view::npos || end == std::string_view::npos || end <= file) return frame;
  frame.file = line.substr(file + 1, end - file - 1);
  line.remove_prefix(end + std::string_view("\", line ").size());
  const auto in = line.find(" in ");
  frame.line = parse_number<int>(line.substr(0, in)).value_or(0);
  if (in != std::string_view::npos) frame.function = line.substr(in + 4);
  return frame;
}

// The value of a line of /proc/PID/status: "0000000180004002" of SigCgt.
std::string status_of(pid_t process, const std::string& name) {
  std::ifstream file(concat("/proc/", process, "/status"));
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name + ":")) continue;
    return line.substr(line.find_first_not_of(" \t", name.size() + 1));
  }
  return "";
}

bool handles(pid_t process, int signal) {
  const std::string handled = status_of(process, "SigCgt");
  return !handled.empty() && ((std::stoull(handled, nullptr, 16) >> (signal - 1)) & 1) != 0;
}

}  // namespace

std::vector<PythonThread> parse_python_stacks(std::string_view text) {
  std::vector<PythonThread> threads;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const bool is_current = line.starts_with("Current thread ");
    if (is_current || line.starts_with("Thread ")) {
      threads.push_back({.took_signal = is_current});
    } else if (line.starts_with("  File \"") && !threads.empty()) {
      threads.back().frames.push_back(parse_frame(line));
    }
  }
  return threads;
}

PythonStacks::PythonStacks(UniqueFd read_end, int signal)
    : read_end_(std::move(read_end)), signal_(signal) {
  if (read_end_.valid()) ::fcntl(read_end_.get(), F_SETFL, O_NONBLOCK);
}

bool PythonStacks::ask(pid_t process) const noexcept try {
  if (!read_end_.valid() || signal_ < 1 || signal_ > SIGRTMAX) return false;
  if (status_of(process, "State").starts_with("T") || !handles(process, signal_)) return false;
  // What an earlier question has left.
  std::array<char, 4096> bytes;
  while (::read(read_end_.get(), bytes.data(), bytes.size()) > 0) {
  }
  return ::kill(process, signal_) == 0;
} catch (const std::exception&) {
  return false;  // Out of memory.
}

std::vector<PythonThread> PythonStacks::read(Deadline deadline) const {
  std::string text;
  while (text.size() < kMostBytes) {
    pollfd news{.fd = read_end_.get(), .events = POLLIN, .revents = 0};
    const int status = ::poll(&news, 1, poll_timeout(deadline));
    if (status < 0 && errno == EINTR) continue;
    if (status <= 0) break;
    std::array<char, 4096> bytes;
    const ssize_t got = ::read(read_end_.get(), bytes.data(), bytes.size());
    if (got <= 0) break;
    text.append(bytes.data(), static_cast<std::size_t>(got));
    if (text.back() == '\0') break;
  }
  return parse_python_stacks(text);
}

}  // namespace lockstep::inline internal
