#include "diagnose/verdict/name_frames.h"

#include <csignal>
#include <map>
#include <sstream>
#include <string>
#include <utility>

#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "diagnose/verdict/module_symbols.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/pipe.h"
#include "lockstep/os/socket/poll_timeout.h"

namespace lockstep::inline internal {
namespace {

// What the helper writes: a line "<number of the frame>\t<line>\t<file>\t<function>" each.
std::string lines_of(std::size_t number, const std::vector<SourceLine>& lines) {
  std::string text;
  for (const SourceLine& line : lines) {
    text += concat(number, "\t", line.line, "\t", line.file, "\t", line.function, "\n");
  }
  return text;
}

void write_names(const std::vector<StackFrame*>& frames, int fd, Deadline deadline) {
  std::map<std::string, std::vector<std::size_t>> modules;
  for (std::size_t i = 0; i < frames.size(); ++i) modules[frames[i]->module].push_back(i);
  for (const auto& [path, numbers] : modules) {
    if (path.empty()) continue;
    const ModuleSymbols symbols(path);
    for (const std::size_t i : numbers) {
      write_all(fd, lines_of(i, symbols.find(frames[i]->address, frames[i]->offset)), deadline);
    }
  }
}

}  // namespace

FrameNaming::FrameNaming(std::vector<StackFrame*> frames, Deadline deadline) noexcept
    : frames_(std::move(frames)), deadline_(deadline) {
  if (frames_.empty()) return;
  try {
    Pipe names = make_pipe();
    const int result = names.write_end.get();
    helper_.emplace("lockstep-stack", [&](int) {
      // It is of no use after the launcher, whatever it is busy with.
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      // Ports and the ends of workers' links are the launcher's alone.
      close_files_from(STDERR_FILENO + 1, result);
      write_names(frames_, result, deadline_);
    });
    names_ = std::move(names.read_end);
  } catch (const std::exception&) {
    // No process to be had.
  }
}

void FrameNaming::yield_processor() const noexcept {
  constexpr int kLowestPriority = 19;
  if (helper_) ::setpriority(PRIO_PROCESS, static_cast<id_t>(helper_->pid()), kLowestPriority);
}

bool FrameNaming::proceed() noexcept {
  if (!names_.valid()) return true;
  pollfd ready{.fd = names_.get(), .events = POLLIN, .revents = 0};
  char part[4096];
  while (::poll(&ready, 1, 0) > 0) {
    const ssize_t got = ::read(names_.get(), part, sizeof part);
    if (got <= 0) {
      take_names();
      return true;
    }
    try {
      found_.append(part, static_cast<std::size_t>(got));
    } catch (const std::exception&) {
      names_.reset();
      return true;
    }
  }
  if (!deadline_.passed()) return false;
  take_names();
  return true;
}

void FrameNaming::finish() noexcept {
  while (!proceed()) {
    pollfd ready{.fd = names_.get(), .events = POLLIN, .revents = 0};
    ::poll(&ready, 1, poll_timeout(deadline_));
  }
}

void FrameNaming::take_names() noexcept try {
  std::istringstream stream(found_);
  std::size_t number = 0;
  SourceLine line;
  while (stream >> number >> line.line && stream.get() == '\t' &&
         std::getline(stream, line.file, '\t') && std::getline(stream, line.function) &&
         // The last line may be cut.
         !stream.eof() && number < frames_.size()) {
    frames_[number]->lines.push_back(line);
  }
  names_.reset();
} catch (const std::exception&) {
  names_.reset();  // Out of memory: the others stay without names.
}

}  // namespace lockstep::inline internal
