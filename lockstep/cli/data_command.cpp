#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "lockstep/cli/command.h"
#include "lockstep/cli/data_options.h"
#include "lockstep/report/sample_audit.h"

namespace lockstep {

int data_command(const std::vector<std::string>& arguments) {
  const DataOptions options = parse_data_options(arguments);
  if (options.help) {
    std::fputs(data_help(), stdout);
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

}  // namespace lockstep
