// The program `lockstep-snapshot`, which `lockstep snapshot` becomes: it loads LibTorch.
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "launcher/command_line/run_tool.h"
#include "tools/snapshot/snapshot_answers.h"
#include "tools/snapshot/snapshot_options.h"

namespace lockstep::inline internal {
namespace {

SnapshotAnswer answer_to(const SnapshotOptions& options) {
  using Action = SnapshotOptions::Action;
  const std::vector<std::string>& paths = options.paths;
  switch (options.action) {
    case Action::kHelp:
      return {.text = snapshot_help()};
    case Action::kList:
      return list_answer(paths[0], options.json);
    case Action::kVerify:
      return verify_answer({paths.begin(), paths.end()}, options.json);
    case Action::kShow:
      return show_answer(paths[0], options.json);
    case Action::kDiff:
      return diff_answer(paths[0], paths[1], options.json);
    case Action::kExport:
      return export_answer({.source = paths[0],
                            .target = paths[1],
                            .format = options.format,
                            .part = options.part,
                            .prefix = options.prefix,
                            .force = options.force});
    case Action::kPrune:
      return prune_answer(
          {.directory = paths[0], .keep = options.keep, .dry_run = options.dry_run});
  }
  return {};
}

int snapshot_command(const std::vector<std::string>& arguments) {
  const SnapshotAnswer answer = answer_to(parse_snapshot_options(arguments));
  std::fputs(answer.text.c_str(), stdout);
  return answer.exit_code;
}

}  // namespace
}  // namespace lockstep::inline internal

int main(int argc, char** argv) {
  return lockstep::run_tool(argc, argv, lockstep::snapshot_command);
}
