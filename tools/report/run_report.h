#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tools/report/metric_curves.h"
#include "tools/report/run_notes.h"
#include "tools/report/trace_lanes.h"

namespace lockstep::inline internal {

/// The folder of a run (directory of a Trainer).
struct RunReport {
  std::string name;
  MetricCurves metrics;
  RunNotes runs;
  std::vector<NotedFile> snapshots;
  std::vector<NotedFile> best;
  /// The newest timeline in traces/, and its name.
  TraceLanes lanes;
  std::string timeline;
  /// The audit of data/; empty where no samples were logged.
  std::string audit;
  bool is_audit_good = true;
  /// What could not be read, in words.
  std::vector<std::string> problems;
};

/// Reads metrics.jsonl, which must exist, and the other files that do. What is damaged is left out,
/// and named in `problems`. Errors: UsageError for no folder, and one without metrics; SystemError.
RunReport read_run(const std::filesystem::path& folder);

/// A page of HTML that needs no other file and no network. Pure.
std::string page_of(const RunReport& report);

}  // namespace lockstep::inline internal
