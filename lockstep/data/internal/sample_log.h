#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "lockstep/data/epoch_plan.h"
#include "lockstep/os/files/append_lines.h"

namespace lockstep::inline internal {

/// Logs which samples a rank was given, for `lockstep audit`: the file samples.rank<N>.jsonl, one
/// line per event, appended by each run. A line is written at once, so a killed rank loses none.
/// Threads: one at a time.
/// Errors: SystemError from all functions.
class SampleLog {
 public:
  /// The process that writes.
  struct Writer {
    /// Number of the run, from 1; equal on all ranks.
    std::int64_t run = 1;
    int rank = 0;
    int world_size = 1;
  };

  /// Creates the directory if needed.
  SampleLog(const std::filesystem::path& folder, const Writer& writer);

  /// A data loader.
  struct Loader {
    int number = 0;
    std::int64_t dataset_size = 0;
    std::uint64_t seed = 0;
    /// Samples that each epoch hands out at least, unless the limit ends it.
    std::int64_t least_of_epoch = 0;
    std::int64_t limit_batches = 0;  ///< per epoch; 0: none
  };
  /// Logs that a loader begins, at the first sample of epoch 0.
  void begin(const Loader& loader);
  /// Logs that the program's loop has left the epoch early.
  void leave(int number, const DataCursor& cursor);
  /// Logs that a loader moves to a position.
  void go_to(int number, const DataCursor& cursor);
  /// A batch over all ranks, as positions in the epoch's order.
  struct Batch {
    int number = 0;  ///< number of the loader
    std::int64_t epoch = 0;
    SampleRange samples = {};
    bool is_last = false;  ///< last of the epoch
  };
  /// Logs a batch. `samples`: this rank's part of it.
  void batch(const Batch& batch, std::span<const std::size_t> samples);

  /// Number of the last run, of any rank, in the directory's files; 0: none.
  static std::int64_t last_run(const std::filesystem::path& folder);

 private:
  LineLog log_;
  const Writer writer_;
};

}  // namespace lockstep::inline internal
