#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tools/report/metric_curves.h"
#include "tools/report/run_notes.h"
#include "tools/report/trace_lanes.h"

namespace lockstep::inline internal {

/// What the folder of a training (default_root_dir of a Trainer) says of it.
struct RunReport {
  std::string name;
  MetricCurves metrics;
  RunNotes runs;
  std::vector<NotedFile> snapshots;
  std::vector<NotedFile> best;
  /// The newest timeline in traces/, and its file's name.
  TraceLanes lanes;
  std::string timeline;
  /// Of data/: empty where no samples were logged.
  std::string audit;
  bool is_audit_good = true;
  /// What could not be read, in words.
  std::vector<std::string> problems;
};

/// Reads the folder: metrics.jsonl, which must be there, and of the rest what is. What is damaged
/// beside the metrics is left out, and told. Errors: UsageError for no such folder, and one without
/// metrics; SystemError.
RunReport read_run(const std::filesystem::path& folder);

/// A page of HTML by itself: no file beside it and no network. Pure.
std::string page_of(const RunReport& report);

}  // namespace lockstep::inline internal
