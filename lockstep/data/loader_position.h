#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/epoch_plan.h"

namespace lockstep {

inline namespace internal {
class SampleLog;
}

/// Options of DataLoader; names are those of torch.utils.data.DataLoader and
/// accelerate.Accelerator, and of torch::data::DataLoaderOptions where that has the option
/// (`workers`).
struct DataLoaderOptions {
  /// Samples per batch on each rank; with logical_shards in each shard.
  std::int64_t batch_size = 1;
  /// batch_size is that of all ranks together: the same global batches on any number of ranks.
  bool split_batches = false;
  /// Number of shards per step, each a batch of its own, on any number of ranks. A rank gets its
  /// shards one after the other. 0: one shard per rank.
  int logical_shards = 0;
  /// Shuffle each epoch with seed + epoch. False: the dataset's order.
  bool shuffle = true;
  std::uint64_t seed = 0;
  /// Drop the last samples of an epoch if they do not fill a batch on all ranks.
  bool drop_last = false;
  /// End the epoch after so many batches; 0: at its last sample.
  std::int64_t limit_batches = 0;
  /// Threads that load ahead, each with a copy of the dataset; 0: load each batch on request.
  std::int64_t workers = 0;
  /// Timeout of a worker's batch; unset: none.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  /// The ranks that share the dataset. Empty: the default group, or this process alone without one.
  ProcessGroup process_group = {};
  /// Device to which the tensors of torch::data::Example batches are moved.
  c10::Device device = at::kCPU;
};

inline namespace internal {

/// A point in the loops over a DataLoader where the program holds no batch.
enum class LoaderBoundary {
  kLoopBegins,
  kNextBatch,
  kLoopEnds,  ///< after the last batch
};

/// A logical shard of a step; after a step `shard` is the number of shards.
struct ShardPlace {
  std::int64_t epoch = 0;
  std::int64_t batch = 0;  ///< number of the step in its epoch
  int shard = 0;
};

}  // namespace internal

/// The position of a DataLoader, shared with the loops that train on its batches.
/// Threads: one at a time.
class LoaderPosition {
 public:
  /// Errors: UsageError for a batch size below 1, and for a dataset that is empty or of unknown
  /// size.
  LoaderPosition(std::optional<std::size_t> dataset_size, const DataLoaderOptions& options);

  /// Batches of a whole epoch, from its first sample.
  std::int64_t batches_per_epoch() const;
  /// Samples of a full batch, over all ranks.
  std::int64_t batch_size() const { return options_.batch_size; }
  /// Samples of the dataset.
  std::int64_t dataset_size() const { return options_.dataset_size; }
  /// In a loop: the position after the current batch. Outside: where the next loop begins.
  const DataCursor& cursor() const { return cursor_; }
  /// The cursor from which a run resumes: cursor(), or the next epoch after the last batch of an
  /// epoch, which another number of ranks would not recognize as the last. Logs a loop that was
  /// left early.
  /// Errors: SystemError of the log.
  DataCursor cursor_to_save();
  /// Makes the next loop begin there; a loop in progress ends after its batch.
  /// Errors: UsageError for a position that the dataset does not have.
  void set_cursor(const DataCursor& cursor);
  /// Errors: UsageError for a position that the dataset does not have.
  void check_cursor(const DataCursor& cursor) const;

  /// Logs this rank's samples as those of loader `number`. Null: no log.
  /// `from`: position at which the log resumes, if before the cursor; later entries are of an
  /// interrupted loop.
  void set_log(std::shared_ptr<SampleLog> log, int number,
               const std::optional<DataCursor>& from = std::nullopt);

  /// Sets a function that is called at each boundary, before the next batch is loaded. It may call
  /// go_to().
  void set_boundary_visit(std::function<void(LoaderBoundary)> visit);
  /// For the loader: calls that function. True: go_to() was called, and the loop continues there.
  bool visit_boundary(LoaderBoundary boundary);
  /// For that function: moves the loop to `cursor`, also in another epoch; after an epoch's last
  /// batch the loop ends. `group`: the ranks that now share the dataset.
  void go_to(const DataCursor& cursor, const ProcessGroup& group);
  /// Sets the ranks that share the dataset; call it outside of loops.
  void set_process_group(const ProcessGroup& group);
  /// Sets this rank and the number of ranks; call it outside of loops.
  void set_part(const BatchPart& part);
  /// Batches that are left in the cursor's epoch.
  std::int64_t batches_behind_cursor() const;

  /// With logical_shards: sets a function that is called before a shard's batch is loaded, and at
  /// the end of an epoch.
  void set_shard_visit(std::function<void(const ShardPlace&)> visit);
  /// For the loader: calls that function, before it loads the next batch.
  void visit_next_shard();
  /// The option logical_shards.
  int logical_shards() const { return logical_shards_; }
  /// Whether this rank has further shards of the current batch's step.
  bool is_within_step() const { return is_begun_ && has_batch() && !is_last_shard(); }
  /// The shard of the current batch; logical_shards() for a rank without shards, whose batches are
  /// not counted.
  int shard() const { return shard_; }
  /// Whether the current batch is this rank's last of its step.
  bool is_last_shard() const { return turn_ + 1 == batches_of_rank(); }

  /// For the loader: begins an epoch, or the rest of it, at the cursor.
  void begin_epoch();
  /// Begins a loop over an epoch, which lasts as long as the returned object. If that is destroyed
  /// before the end of the epoch, the loop was left early, and the next loop is the next epoch.
  /// Lifetime: the position must outlive the returned object.
  std::shared_ptr<void> begin_pass();
  /// Moves to the next batch; after the last one the epoch ends.
  void advance();
  /// The indices of the next batch to load, which may be ahead of the loop; nullopt at the end.
  std::optional<std::vector<std::size_t>> next_indices();

  /// Whether a loop has a current batch; the functions below describe it.
  bool has_batch() const;
  /// Whether a loop is in progress.
  bool is_in_pass() const { return !pass_.expired(); }
  /// The newest loop; expired when it has ended.
  const std::weak_ptr<void>& pass() const { return pass_; }
  /// When the newest loop began.
  std::chrono::steady_clock::time_point pass_began() const { return pass_began_; }
  /// Samples of this rank's batch, padding excluded.
  std::int64_t samples() const { return is_without_shard() ? 0 : samples_of(shard_); }
  /// Samples of another rank's batch, padding excluded.
  std::int64_t samples_of(int rank) const { return plan_->share(number_, rank).size; }
  /// Samples of the step over all ranks.
  std::int64_t batch_samples() const { return plan_->step(number_).size; }
  /// Mean number of samples per shard of a full batch, the same for all shards.
  double full_samples() const { return static_cast<double>(options_.batch_size) / shards(); }
  /// The number of ranks that share the dataset.
  int world_size() const { return part_.world_size; }
  /// Whether every batch of an epoch is full and has equally many samples on each rank.
  bool has_even_batches() const;
  /// Whether the current batch is of the last step of the epoch.
  bool is_last() const { return batches_left() == 1; }
  /// Steps left in the epoch, this one included.
  std::int64_t batches_left() const { return plan_->steps() - number_; }
  /// How many steps, from this one on, are full and have equally many samples on each rank.
  std::int64_t even_from_here() const { return plan_->even_from(number_); }

 private:
  int shards() const { return logical_shards_ > 0 ? logical_shards_ : part_.world_size; }
  /// This rank's shards: the first, and one past the last.
  std::pair<int, int> local_shards() const;
  int batches_of_rank() const;
  bool is_without_shard() const { return logical_shards_ > 0 && shard_ == logical_shards_; }
  int shard_of_turn(std::int64_t turn) const;
  std::vector<std::size_t> own_samples() const;
  void move(const DataCursor& cursor);
  void end_pass(std::uint64_t number);
  void leave_epoch();
  void log_left();
  void end_epoch();

  EpochPlanOptions options_;
  std::int64_t batch_size_of_shard_ = 0;  ///< 0: the batch is divided among the shards
  int logical_shards_ = 0;
  std::function<void(const ShardPlace&)> shard_visit_;
  BatchPart part_;
  DataCursor cursor_;
  std::function<void(LoaderBoundary)> visit_;
  bool was_moved_ = false;  ///< by go_to(), since the last boundary
  /// A loop over the cursor's epoch is in progress.
  bool is_begun_ = false;
  /// Where the last loop was left early; cleared when it is logged.
  std::optional<DataCursor> left_;
  std::optional<EpochPlan> plan_;
  int shard_ = 0;  ///< of the current batch
  int turn_ = 0;   ///< number of the current batch among this rank's batches of the step
  EpochOrder order_;
  std::int64_t number_ = -1;
  std::int64_t asked_ = 0;
  std::shared_ptr<SampleLog> log_;
  int log_number_ = 0;
  std::weak_ptr<void> pass_;
  std::uint64_t passes_ = 0;
  std::chrono::steady_clock::time_point pass_began_;
};

}  // namespace lockstep
