#include "launcher/supervise/explain_crashes.h"

#include <chrono>
#include <vector>

#include "diagnose/verdict/error_file.h"
#include "diagnose/verdict/name_frames.h"
#include "launcher/logs/worker_logs.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

void explain_crashes(AttemptOutcome& outcome) noexcept try {
  // LibTorch's symbols take 0.3 s. A job that is to be started again waits no longer than this.
  constexpr std::chrono::milliseconds kLongest{10'000};
  std::vector<StackFrame*> frames;
  for (WorkerExit& exit : outcome.exits) {
    if (!exit.crash) continue;
    for (StackFrame& frame : exit.crash->frames) frames.push_back(&frame);
  }
  name_frames(frames, Deadline::after(kLongest));
  for (WorkerExit& exit : outcome.exits) {
    if (!exit.crash) continue;
    exit.error_message = crash_message(*exit.crash);
    if (!exit.directory.empty()) add_names(error_file_of(exit), *exit.crash);
  }
} catch (const std::exception&) {
  // Out of memory: the report has addresses in place of names, and error files stay as they are.
}

}  // namespace lockstep::inline internal
