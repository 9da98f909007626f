#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "lockstep/record/internal/sample_audit.h"
#include "tools/commands.h"
#include "tools/parse_flags.h"

namespace lockstep::inline internal {

int audit_command(const std::vector<std::string>& arguments) {
  std::string folder;
  bool is_json = false;
  CLI::App app(
      "Proves from the logs of a run that each sample of each epoch was trained once, through "
      "failures,\n"
      "resumes and changes of the number of ranks. After a resume it ignores samples logged after "
      "the\n"
      "snapshot: those steps were rolled back.",
      "lockstep audit");
  app.add_option("DIR", folder,
                 "folder with samples.rank0.jsonl, ... (AcceleratorOptions::sample_log_directory)")
      ->required();
  app.add_flag("--json", is_json, "print the result as JSON");
  app.footer(
      "Exit code: 0: each sample was trained once; 1: not, or DIR cannot be read; 2: wrong "
      "command\n"
      "line, or DIR has no logs of samples.\n\n"
      "Examples:\n"
      "  lockstep audit runs/digits/data\n"
      "  lockstep audit runs/digits/data --json");
  if (!parse_flags(app, arguments)) return 0;
  const std::vector<AuditedLoader> loaders = audit_samples(folder);
  if (is_json) {
    std::printf("%s\n", to_json(loaders).c_str());
  } else {
    for (const AuditedLoader& loader : loaders) std::fputs(describe(loader).c_str(), stdout);
  }
  const auto is_good = [](const AuditedLoader& loader) { return loader.problems.empty(); };
  return std::ranges::all_of(loaders, is_good) ? 0 : 1;
}

}  // namespace lockstep::inline internal
