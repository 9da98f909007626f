#include "launcher/cli/job_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"

namespace lockstep::inline internal {
namespace {

constexpr std::size_t kColumns = 9;
using Row = std::array<std::string, kColumns>;

std::string machine_text(const JobStatus& status) {
  if (!status.node_rank) return "-";
  return concat(*status.node_rank, " of ", status.node_count);
}

Row row_of(const RunningJob& job) {
  if (!job.status) return {job.name, concat(job.pid), job.trouble};
  const JobStatus& status = *job.status;
  return {job.name,
          concat(job.pid),
          concat(name_of(status.state), status.is_healthy ? "" : "!"),
          machine_text(status),
          concat(status.worker_count),
          status.world_size > 0 ? concat(status.world_size) : "-",
          concat(status.restarts, " of ", status.max_restarts),
          duration_text(status.seconds),
          status.program};
}

std::string line_of(const Row& row, const std::array<std::size_t, kColumns>& widths) {
  std::string line;
  for (std::size_t i = 0; i < kColumns; ++i) {
    line += row[i] + std::string(widths[i] - std::min(widths[i], row[i].size()) + 2, ' ');
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::string worker_line(const WorkerStatus& worker) {
  const std::string who = worker.rank < 0
                              ? "  standby worker"
                              : concat("  rank ", worker.rank, "  local rank ", worker.local_rank);
  std::string line = concat(who, "  pid ", worker.pid, "  ", name_of(worker.state), " ",
                            worker.state == WorkerStatus::State::kRunning ? "for " : "after ",
                            duration_text(worker.seconds));
  if (worker.state == WorkerStatus::State::kRunning) {
    char cpu[32];
    std::snprintf(cpu, sizeof(cpu), "%.1f", worker.cpu_seconds);
    line +=
        concat("  cpu ", cpu, " s  memory ", size_text(static_cast<double>(worker.resident_bytes)));
  }
  return line + "\n";
}

// What a line of the table has no room for.
std::string notes_of(const JobStatus& status) {
  std::string notes;
  if (!status.is_healthy) notes += concat("  ! ", status.health, "\n");
  if (!status.missing.empty()) notes += concat("  waiting: ", status.missing, "\n");
  return notes;
}

}  // namespace

std::string job_table(const std::vector<RunningJob>& jobs, bool workers) {
  const Row headings = {"JOB",   "PID",      "STATE", "MACHINE", "WORKERS",
                        "WORLD", "RESTARTS", "SINCE", "PROGRAM"};
  std::vector<Row> rows;
  for (const RunningJob& job : jobs) rows.push_back(row_of(job));
  std::array<std::size_t, kColumns> widths{};
  for (std::size_t i = 0; i < kColumns; ++i) widths[i] = headings[i].size();
  for (std::size_t row = 0; row < rows.size(); ++row) {
    // What stands in place of a state may be as long as it is.
    const std::size_t columns = jobs[row].status ? kColumns : 2;
    for (std::size_t i = 0; i < columns; ++i) {
      widths[i] = std::max(widths[i], rows[row][i].size());
    }
  }
  std::string text = line_of(headings, widths);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    text += line_of(rows[row], widths);
    const auto& status = jobs[row].status;
    if (!status) continue;
    text += notes_of(*status);
    if (!workers) continue;
    for (const WorkerStatus& worker : status->workers) text += worker_line(worker);
  }
  return text;
}

std::string duration_text(double seconds) {
  constexpr long kMinute = 60;
  constexpr long kHour = 60 * kMinute;
  constexpr long kDay = 24 * kHour;
  const long whole = std::max(0L, std::lround(std::floor(seconds)));
  if (whole < kMinute) return concat(whole, " s");
  if (whole < kHour) return concat(whole / kMinute, " min");
  if (whole < kDay) return concat(whole / kHour, " h ", whole % kHour / kMinute, " min");
  return concat(whole / kDay, " d ", whole % kDay / kHour, " h");
}

}  // namespace lockstep::inline internal
