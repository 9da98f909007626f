#pragma once

#include <filesystem>
#include <string>

#include "diagnose/verdict/generation_outcome.h"
#include "diagnose/verdict/name_frames.h"
#include "launcher/job/launch_options.h"

namespace lockstep::inline internal {

/// "rank 1 (pid 42) still runs after SIGKILL: …".
std::string describe_stuck(const WorkerExit& worker);

/// The worker that failed first, its error or crash, the ends of the other workers and where its
/// output is: lines that start with "lockstep: ". Needs a first_cause().
std::string failure_report(const GenerationOutcome& outcome, const LaunchOptions& options);

/// What `cause`, which begins with the text `fault`, adds to it: why the job is not restarted.
/// Empty: nothing, also where `cause` was cut to the length of a text that agents send.
std::string reason_after(const std::string& fault, const std::string& cause);

/// Gives the stacks of all workers of an outcome that crashed their names, and their errors the
/// place. Writes them into their error files too, for readers of the logs. Errors: none.
class CrashNaming {
 public:
  explicit CrashNaming(GenerationOutcome outcome);

  /// As FrameNaming.
  int fd() const { return naming_.fd(); }
  Deadline deadline() const { return naming_.deadline(); }
  void yield_processor() const noexcept { naming_.yield_processor(); }
  bool proceed() noexcept;
  void finish() noexcept;
  /// With the names, once it is complete.
  const GenerationOutcome& outcome() const { return outcome_; }
  /// What the console shows of the crash that ended the generation; empty: no crash did.
  std::string text() const;

 private:
  void note_names() noexcept;

  GenerationOutcome outcome_;
  FrameNaming naming_;
};

/// The same outcome with the names. Takes a few seconds at most, and no time where no worker
/// crashed.
GenerationOutcome name_crashes(GenerationOutcome outcome);

}  // namespace lockstep::inline internal
