#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::differential {

/// What the fuzzer's program is to do (docs/fuzzing.md).
struct Arguments {
  std::vector<std::uint64_t> seeds;  ///< at least one
  std::vector<std::size_t> cuts;     ///< applied to the plan, one after the other
  std::string progress;              ///< a file that says which seed or cut runs
  std::string shrinks_with;          ///< the command `lockstep`
  int ranks = 0;                     ///< those of the job, else of --ranks
  bool in_shards = false;            ///< seeds stand for training runs in logical shards
  bool in_units = false;             ///< and these for fully sharded ones of several units
  bool prints = false;
  bool prints_program = false;
  bool stops = false;   ///< at the first seed that fails
  bool probes = false;  ///< tries every cut of the plan, up to the first that fails
};

/// Errors: UsageError names the flag, its value and what to give.
Arguments parse_arguments(int argc, const char* const* argv);

}  // namespace lockstep::differential
