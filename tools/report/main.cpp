// The program `lockstep-report`, which `lockstep report` becomes.
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "launcher/command_line/run_tool.h"
#include "lockstep/base/internal/count_text.h"
#include "lockstep/os/files/atomic_file.h"
#include "tools/report/report_options.h"
#include "tools/report/run_report.h"

namespace lockstep::inline internal {
namespace {

int report_command(const std::vector<std::string>& arguments) {
  const ReportOptions options = parse_report_options(arguments);
  if (options.help) {
    std::fputs(report_help(), stdout);
    return 0;
  }
  const std::filesystem::path folder = options.folder;
  const std::filesystem::path output =
      options.output.empty() ? folder / "report.html" : std::filesystem::path(options.output);
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

}  // namespace
}  // namespace lockstep::inline internal

int main(int argc, char** argv) {
  return lockstep::run_tool(argc, argv, lockstep::report_command);
}
