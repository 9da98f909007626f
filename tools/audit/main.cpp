// The program `lockstep-audit`, which `lockstep audit` becomes.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "launcher/command_line/run_tool.h"
#include "lockstep/record/internal/sample_audit.h"
#include "tools/audit/audit_options.h"

namespace lockstep::inline internal {
namespace {

int audit(const std::vector<std::string>& arguments) {
  const AuditOptions options = parse_audit_options(arguments);
  if (options.help) {
    std::fputs(audit_help(), stdout);
    return 0;
  }
  const std::vector<AuditedLoader> loaders = audit_samples(options.folder);
  if (options.json) {
    std::printf("%s\n", to_json(loaders).c_str());
  } else {
    for (const AuditedLoader& loader : loaders) std::fputs(describe(loader).c_str(), stdout);
  }
  const auto is_good = [](const AuditedLoader& loader) { return loader.problems.empty(); };
  return std::ranges::all_of(loaders, is_good) ? 0 : 1;
}

}  // namespace
}  // namespace lockstep::inline internal

int main(int argc, char** argv) {
  return lockstep::run_tool(argc, argv, lockstep::audit);
}
