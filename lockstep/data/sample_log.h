#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "lockstep/data/epoch_batches.h"
#include "lockstep/os/append_lines.h"

namespace lockstep {

/// Which samples a rank was given, for `lockstep data audit`: the file samples.rank<N>.jsonl, one
/// line an event, to which each run of a training appends. A line is written when the event is, so
/// that a rank that is killed leaves all before it. Threads: one at a time.
class SampleLog {
 public:
  struct Writer {
    /// Which run of the training, from 1: the same on all ranks.
    std::int64_t run = 1;
    int rank = 0;
    int world_size = 1;
  };

  /// Makes the folder if need be. Errors: SystemError.
  SampleLog(const std::filesystem::path& folder, const Writer& writer);

  /// Loader `number` begins, at the first sample of epoch 0. `least_of_epoch`: so many samples of
  /// each epoch are given out at least. Errors, of all: SystemError.
  void begin(int number, std::int64_t dataset_size, std::uint64_t seed,
             std::int64_t least_of_epoch);
  /// The program's loop has left the epoch early.
  void leave(int number, const DataCursor& cursor);
  /// It goes on there.
  void go_to(int number, const DataCursor& cursor);
  /// A batch of all ranks, from sample `begin` of the epoch's order to `end`, and what this rank
  /// has of it.
  void batch(int number, std::int64_t epoch, const SampleRange& batch,
             std::span<const std::size_t> samples);

  /// The last run that rank 0's file in the folder tells of; 0: none.
  static std::int64_t last_run(const std::filesystem::path& folder);

 private:
  LineLog log_;
  const Writer writer_;
};

}  // namespace lockstep
