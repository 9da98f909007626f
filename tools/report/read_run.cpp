#include <algorithm>
#include <cerrno>
#include <functional>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/record/internal/sample_audit.h"
#include "tools/report/run_report.h"

namespace lockstep::inline internal {
namespace {

namespace fs = std::filesystem;

// The merged one, not that of a rank.
std::string newest_timeline(const fs::path& folder) {
  std::string newest;
  fs::file_time_type newest_time;
  for (const NotedFile& file : files_in(folder)) {
    const bool is_timeline =
        file.name.ends_with(".json") && file.name.find(".rank") == std::string::npos;
    if (!is_timeline) continue;
    const auto time = fs::last_write_time(folder / file.name);
    if (!newest.empty() && time <= newest_time) continue;
    newest = file.name;
    newest_time = time;
  }
  return newest;
}

void read_audit(RunReport& report, const fs::path& folder) {
  if (files_in(folder).empty()) return;
  for (const AuditedLoader& loader : audit_samples(folder)) {
    report.audit += describe(loader);
    report.is_audit_good = report.is_audit_good && loader.problems.empty();
  }
}

}  // namespace

RunReport read_run(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    if (error && error.value() != ENOENT) {
      throw SystemError(concat("report: read ", folder), error.value(),
                        "choose a folder that you may read");
    }
    throw UsageError(concat("report: ", folder,
                            " is no folder; give that of a run "
                            "(directory of a Trainer)"));
  }
  RunReport report;
  report.name = fs::absolute(folder).lexically_normal().string();
  report.metrics = read_metrics(folder);
  if (report.name.ends_with('/')) report.name.pop_back();
  report.problems = report.metrics.problems;
  const auto read = [&](const std::function<void()>& part) {
    try {
      part();
    } catch (const Error& cause) {
      report.problems.emplace_back(cause.what());
    }
  };
  read([&] { report.runs = read_runs(folder); });
  report.problems.insert(report.problems.end(), report.runs.problems.begin(),
                         report.runs.problems.end());
  read([&] { report.snapshots = files_in(folder / "snapshots"); });
  read([&] { report.best = files_in(folder / "best"); });
  read([&] {
    const std::string timeline = newest_timeline(folder / "traces");
    if (timeline.empty()) return;
    report.lanes = read_lanes(folder / "traces" / timeline);
    report.timeline = timeline;
  });
  read([&] { read_audit(report, folder / "data"); });
  return report;
}

}  // namespace lockstep::inline internal
