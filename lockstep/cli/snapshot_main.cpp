// The program `lockstep-snapshot`, which `lockstep snapshot` becomes: it loads LibTorch.
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/cli/finish_output.h"
#include "lockstep/cli/snapshot_options.h"
#include "lockstep/inspect/snapshot_answers.h"

namespace lockstep {
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

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  try {
    const lockstep::SnapshotAnswer answer =
        lockstep::answer_to(lockstep::parse_snapshot_options({argv + 1, argv + argc}));
    std::fputs(answer.text.c_str(), stdout);
    lockstep::finish_output();
    return answer.exit_code;
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "lockstep: %s\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lockstep: %s\n", error.what());
    return lockstep::kExitFailure;
  }
}
