#include <cstdio>
#include <string>
#include <vector>

#include "lockstep/cli/command.h"
#include "lockstep/cli/program_beside.h"
#include "lockstep/cli/snapshot_options.h"

namespace lockstep {

// What reads tensors loads LibTorch, which takes a hundred times as long as `lockstep` to start.
int snapshot_command(const std::vector<std::string>& arguments) {
  if (parse_snapshot_options(arguments).action == SnapshotOptions::Action::kHelp) {
    std::fputs(snapshot_help(), stdout);
    return 0;
  }
  std::vector<std::string> words = {program_beside("lockstep-snapshot", "snapshot")};
  words.insert(words.end(), arguments.begin(), arguments.end());
  become_program(words);
}

}  // namespace lockstep
