#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/os/files/append_lines.h"

/// Hashes of a training run's tensors after its steps, which `lockstep replay` compares.
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

/// Describes this process.
/// Errors: SystemError.
StartedProgram describe_own_program();

/// Writes hashes.jsonl of a training run: a line of JSON for each start of the program, then one
/// for each logged step:
///
///     {"event": "begin", "step": 0, "ranks": 2, "logical_shards": 8, "directory": "/runs/digits",
///      "kernels": "LibTorch=2.13.0 …", "program": "/bin/train", "arguments": [],
///      "working_directory": "/home"}
///     {"step": 1, "tensors": {"fc.weight": "00c5a2e9f01b3d47", …}}
///
/// Threads: one at a time.
/// Errors: SystemError (disk full).
class HashLog {
 public:
  explicit HashLog(const std::filesystem::path& folder);

  struct Begin {
    std::int64_t step = 0;  ///< steps that were made before
    int ranks = 1;
    int logical_shards = 0;
    std::string kernels;    ///< kernel_fingerprint(); empty in older logs
    std::string directory;  ///< of the run, absolute
    StartedProgram program;
  };
  void begin(const Begin& begin);
  void add(std::int64_t step, const TensorHashes& tensors);

 private:
  LineLog log_;
};

/// The content of a log. After a resume the steps after its snapshot are those of the newer run.
struct LoggedHashes {
  struct Step {
    std::size_t run = 0;  ///< which of `runs` made it
    TensorHashes tensors;
  };
  std::vector<HashLog::Begin> runs;
  std::map<std::int64_t, Step> steps;
};

/// Ignores an incomplete last line.
/// Errors: UsageError if there is no log; CorruptFile with the line; SystemError.
LoggedHashes read_hashes(const std::filesystem::path& folder);

/// First difference between two runs.
struct HashDifference {
  std::int64_t step = 0;
  std::string tensor;  ///< the first that differs, in the order of `expected`
  std::size_t differing = 0;
  std::size_t tensors = 0;
};

/// The first step with a difference among those that both have. Pure.
std::optional<HashDifference> first_difference(const LoggedHashes& expected,
                                               const LoggedHashes& actual);

}  // namespace lockstep::inline internal
