#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "lockstep/cli/command.h"
#include "lockstep/cli/data_options.h"
#include "lockstep/cli/program_beside.h"
#include "lockstep/report/sample_audit.h"

namespace lockstep {

namespace {

int audit(const DataOptions& options) {
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

// libcurl and what it needs take five times as long to load as all the rest of `lockstep run`: they
// are left to a program of their own.
int data_command(const std::vector<std::string>& arguments) {
  const DataOptions options = parse_data_options(arguments);
  if (options.action == DataOptions::Action::kAudit) return audit(options);
  std::vector<std::string> words = {program_beside("lockstep-data", "data")};
  words.insert(words.end(), arguments.begin(), arguments.end());
  become_program(words);
}

}  // namespace lockstep
