#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "lockstep/data/epoch_plan.h"
#include "lockstep/os/files/append_lines.h"

namespace lockstep::inline internal {

/// Which samples a rank was given, for `lockstep audit`: the file samples.rank<N>.jsonl, one
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

  struct Loader {
    int number = 0;
    std::int64_t dataset_size = 0;
    std::uint64_t seed = 0;
    /// So many samples of each epoch are handed out at least, unless the limit ends it.
    std::int64_t least_of_epoch = 0;
    std::int64_t limit_batches = 0;  ///< of an epoch; 0: none
  };
  /// A loader begins, at the first sample of epoch 0. Errors, of all: SystemError.
  void begin(const Loader& loader);
  /// The program's loop has left the epoch early.
  void leave(int number, const DataCursor& cursor);
  /// It goes on there.
  void go_to(int number, const DataCursor& cursor);
  /// A batch of all ranks, by the epoch's order.
  struct Batch {
    int number = 0;  ///< of the loader
    std::int64_t epoch = 0;
    SampleRange samples = {};
    bool is_last = false;  ///< of the epoch
  };
  /// `samples`: what this rank has of it.
  void batch(const Batch& batch, std::span<const std::size_t> samples);

  /// The last run in the folder's files, of any rank; 0: none.
  static std::int64_t last_run(const std::filesystem::path& folder);

 private:
  LineLog log_;
  const Writer writer_;
};

}  // namespace lockstep::inline internal
