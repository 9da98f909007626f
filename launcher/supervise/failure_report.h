#pragma once

#include <filesystem>
#include <string>

#include "diagnose/verdict/generation_outcome.h"
#include "diagnose/verdict/name_frames.h"
#include "launcher/job/launch_options.h"

namespace lockstep::inline internal {

/// "rank 1 (pid 42) still runs after SIGKILL: …".
std::string describe_stuck(const WorkerExit& worker);

/// The report of a failed generation, in lines that start with "lockstep: ": the worker that failed
/// first with its error or crash, the ends of the other workers, and where their output is. Needs a
/// first_cause().
std::string failure_report(const GenerationOutcome& outcome, const LaunchOptions& options);

/// The part of `cause` after the text `fault`: why the job is not restarted. Empty if there is
/// none, or if `cause` was truncated for a message between agents.
std::string reason_after(const std::string& fault, const std::string& cause);

/// Resolves functions and lines in the stacks of an outcome's crashed workers, and adds the place
/// to their errors. Writes them into the error files too.
/// Errors: none.
class CrashNaming {
 public:
  explicit CrashNaming(GenerationOutcome outcome);

  /// See FrameNaming.
  int fd() const { return naming_.fd(); }
  Deadline deadline() const { return naming_.deadline(); }
  void yield_processor() const noexcept { naming_.yield_processor(); }
  bool proceed() noexcept;
  void finish() noexcept;
  /// The outcome, with names once proceed() returns true.
  const GenerationOutcome& outcome() const { return outcome_; }
  /// Console text of the crash that ended the generation; empty: no crash did.
  std::string text() const;

 private:
  void note_names() noexcept;

  GenerationOutcome outcome_;
  FrameNaming naming_;
};

/// Returns the outcome with names. Takes at most a few seconds, and none if no worker crashed.
GenerationOutcome name_crashes(GenerationOutcome outcome);

}  // namespace lockstep::inline internal
