#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/internal/text.h"
#include "lockstep/os/files/atomic_file.h"
#include "tools/commands.h"
#include "tools/parse_flags.h"
#include "tools/report/run_report.h"

namespace lockstep::inline internal {

int report_command(const std::vector<std::string>& arguments) {
  std::string folder;
  std::string output;
  CLI::App app(
      "Writes a page of a training run: curves of all metrics, throughput, the timeline of "
      "each rank,\n"
      "starts of the program and how each ended, the audit of samples, machine and versions, "
      "snapshots. It is\n"
      "one HTML file that needs no network.",
      "lockstep report");
  app.add_option("RUN", folder, "folder of the run (directory of a Trainer), with metrics.jsonl")
      ->required();
  app.add_option("-o,--output", output, "where to write the page (default RUN/report.html)")
      ->type_name("FILE");
  app.footer(
      "Damaged lines are left out, and named on the page and on stderr.\n\n"
      "Exit code: 0; 1 when the page cannot be written; 2 for a wrong command line or a folder "
      "without\n"
      "metrics.\n\n"
      "Examples:\n"
      "  lockstep report runs/digits\n"
      "  lockstep report runs/digits --output=digits.html");
  if (!parse_flags(app, arguments)) return 0;
  if (output.empty()) output = std::filesystem::path(folder) / "report.html";
  const RunReport report = read_run(folder);
  for (const std::string& problem : report.problems) {
    std::fprintf(stderr, "lockstep: report: %s\n", problem.c_str());
  }
  const std::string page = page_of(report);
  AtomicFile file(output);
  file.write(page.data(), page.size());
  file.commit();
  std::printf("%s: %s over %.0f steps\n", output.c_str(),
              count_text(report.metrics.curves.size(), "metric").c_str(), report.metrics.last_step);
  return 0;
}

}  // namespace lockstep::inline internal
