#include "diagnose/verdict/name_frames.h"

#include <csignal>
#include <map>
#include <sstream>
#include <string>

#include <sys/prctl.h>
#include <unistd.h>

#include "diagnose/verdict/module_symbols.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/pipe.h"
#include "lockstep/os/process/helper_process.h"

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

void take_names(const std::string& text, const std::vector<StackFrame*>& frames) {
  std::istringstream stream(text);
  std::size_t number = 0;
  SourceLine line;
  while (stream >> number >> line.line && stream.get() == '\t' &&
         std::getline(stream, line.file, '\t') && std::getline(stream, line.function) &&
         // The last line may be cut.
         !stream.eof() && number < frames.size()) {
    frames[number]->lines.push_back(line);
  }
}

}  // namespace

void name_frames(const std::vector<StackFrame*>& frames, Deadline deadline) noexcept try {
  if (frames.empty()) return;
  Pipe names = make_pipe();
  const HelperProcess helper("lockstep-stack", [&](int) {
    // It is of no use after the launcher, whatever it is busy with.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    write_names(frames, names.write_end.get(), deadline);
  });
  names.write_end.reset();
  take_names(read_to_end(names.read_end.get(), deadline), frames);
} catch (const std::exception&) {
  // No process to be had: the frames stay without names.
}

}  // namespace lockstep::inline internal
