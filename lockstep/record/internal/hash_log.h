#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/os/files/append_lines.h"

/// The hashes of a training run's tensors after its steps, by which `lockstep replay` compares.
namespace lockstep::inline internal {

struct TensorHash {
  std::string name;
  std::uint64_t hash = 0;
  bool operator==(const TensorHash&) const = default;
};
using TensorHashes = std::vector<TensorHash>;

/// How a program was started.
struct StartedProgram {
  std::string path;  ///< of its file
  std::vector<std::string> arguments;
  std::string working_directory;
};

/// This process. Errors: SystemError.
StartedProgram describe_own_program();

/// hashes.jsonl of a training run, to which each start of the program appends a line of JSON, and
/// then one for each step that is logged:
/// {"event": "begin", "step": 0, "ranks": 2, "logical_shards": 8, "directory": "/runs/digits",
/// "program": "/bin/train", "arguments": [], "working_directory": "/home"},
/// {"step": 1, "tensors": {"fc.weight": "00c5a2e9f01b3d47", …}}.
/// Threads: one. Errors: SystemError (disk full).
class HashLog {
 public:
  explicit HashLog(const std::filesystem::path& folder);

  struct Begin {
    std::int64_t step = 0;  ///< steps that were made before
    int ranks = 1;
    int logical_shards = 0;
    std::string directory;  ///< of the run, absolute
    StartedProgram program;
  };
  void begin(const Begin& begin);
  void add(std::int64_t step, const TensorHashes& tensors);

 private:
  LineLog log_;
};

/// What a log holds. After a resume the steps behind its snapshot are those of the newer run.
struct LoggedHashes {
  struct Step {
    std::size_t run = 0;  ///< which of `runs` made it
    TensorHashes tensors;
  };
  std::vector<HashLog::Begin> runs;
  std::map<std::int64_t, Step> steps;
};

/// A last line that is cut off is left out. Errors: UsageError where there is no log; CorruptFile,
/// naming the line; SystemError.
LoggedHashes read_hashes(const std::filesystem::path& folder);

/// Where one run has other bits than another.
struct HashDifference {
  std::int64_t step = 0;
  std::string tensor;  ///< the first that differs, in the order of `expected`
  std::size_t differing = 0;
  std::size_t tensors = 0;
};

/// The first step with a difference, of those that both have. Pure.
std::optional<HashDifference> first_difference(const LoggedHashes& expected,
                                               const LoggedHashes& actual);

}  // namespace lockstep::inline internal
