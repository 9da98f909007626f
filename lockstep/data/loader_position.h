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

/// Names are those of torch.utils.data.DataLoader and accelerate.Accelerator.
struct DataLoaderOptions {
  /// Samples a batch, on each rank; with logical_shards of each shard.
  std::int64_t batch_size = 1;
  /// batch_size is that of all ranks together: the same batches whatever the number of ranks.
  bool split_batches = false;
  /// A step's samples are divided into so many shards, each a batch of its own, whatever the number
  /// of ranks; a rank is given its shards one after the other. 0: one shard per rank.
  int logical_shards = 0;
  /// A new order each epoch, from seed + epoch; otherwise the dataset's order.
  bool shuffle = true;
  std::uint64_t seed = 0;
  /// Leave out what is left of an epoch when it fills no batch of all ranks.
  bool drop_last = false;
  /// The epoch ends after so many batches; 0: with its samples.
  std::int64_t limit_batches = 0;
  /// Threads that read ahead, each with a copy of the dataset; 0: batches are made when asked for.
  std::int64_t workers = 0;
  /// Of a worker's batch; unset: none.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  /// The ranks that share the dataset. Empty: the default group, else this one process.
  ProcessGroup process_group = {};
  /// Where the tensors of torch::data::Example batches are moved.
  c10::Device device = at::kCPU;
};

/// A place in the loops over a DataLoader where the program holds no batch.
enum class LoaderBoundary {
  kLoopBegins,
  kNextBatch,
  kLoopEnds,  ///< behind the last batch
};

/// A logical shard of a step, or what follows a step: then `shard` is the number of shards.
struct ShardPlace {
  std::int64_t epoch = 0;
  std::int64_t batch = 0;  ///< of the epoch: the step's number in it
  int shard = 0;
};

/// Where a DataLoader is, of which both it and those that train on its batches know.
/// Threads: one at a time.
class LoaderPosition {
 public:
  /// Errors: UsageError for a batch of none, an empty dataset, or one that does not know its size.
  LoaderPosition(std::optional<std::size_t> dataset_size, const DataLoaderOptions& options);

  /// Of all passes but those of ranks and epochs: what a whole epoch has.
  std::int64_t batches_per_epoch() const;
  /// Of a batch of full size, of all ranks.
  std::int64_t batch_size() const { return options_.batch_size; }
  std::int64_t dataset_size() const { return options_.dataset_size; }
  /// In a loop: behind the batch at which it is. Else where the next loop begins.
  const DataCursor& cursor() const { return cursor_; }
  /// Where a run goes on that is resumed from here: cursor(), or the next epoch behind an epoch's
  /// last batch, which another number of ranks would not recognize. Tells the log of a loop that
  /// was left early. Errors: SystemError of the log.
  DataCursor cursor_to_save();
  /// The next loop goes on there; one that is under way ends with its batch.
  /// Errors: UsageError for a place that the dataset does not have.
  void set_cursor(const DataCursor& cursor);
  void check_cursor(const DataCursor& cursor) const;

  /// Tells the log what this rank is given, as loader `number`. Null: none. `from`: where the log
  /// goes on, if before the cursor: what it had there is of a loop that was interrupted.
  void set_log(std::shared_ptr<SampleLog> log, int number,
               const std::optional<DataCursor>& from = std::nullopt);

  /// Calls `visit` at each boundary, before the next batch is read. `visit` may call go_to().
  void set_boundary_visit(std::function<void(LoaderBoundary)> visit);
  /// For the loader: at a boundary. Whether go_to() was called: then the loop begins again there.
  bool visit_boundary(LoaderBoundary boundary);
  /// For `visit` of set_boundary_visit(): the ranks that share the dataset are now those of
  /// `group`, and the loop goes on at `cursor`, in another epoch too; behind an epoch's last batch
  /// it ends.
  void go_to(const DataCursor& cursor, const ProcessGroup& group);
  /// Outside of loops: the ranks that share the dataset.
  void set_process_group(const ProcessGroup& group);
  void set_part(const BatchPart& part);
  /// Batches left in the cursor's epoch.
  std::int64_t batches_behind_cursor() const;

  /// Calls `visit` before a shard's batch is read, and at the end of an epoch. With logical_shards.
  void set_shard_visit(std::function<void(const ShardPlace&)> visit);
  /// For the loader: before it reads the next batch.
  void visit_next_shard();
  int logical_shards() const { return logical_shards_; }
  /// The loop is at a batch behind which this rank has other shards of the same step.
  bool is_within_step() const { return is_begun_ && has_batch() && !is_last_shard(); }
  /// At a batch: its shard, and whether it is this rank's last one of the step. A rank without a
  /// shard has one batch a step, which does not count; shard() is then logical_shards().
  int shard() const { return shard_; }
  bool is_last_shard() const { return turn_ + 1 == batches_of_rank(); }

  void begin_epoch();
  /// A loop over an epoch, which lasts as long as what is returned: where that goes before the
  /// epoch's end, the loop was left early, and the next one is of the next epoch. The caller keeps
  /// the position alive meanwhile.
  std::shared_ptr<void> begin_pass();
  /// To the next batch, or past the last, with which the epoch ends.
  void advance();
  /// For whoever makes the batches, which may be ahead.
  std::optional<std::vector<std::size_t>> next_indices();

  /// Whether a loop is at a batch, of which the following is known.
  bool has_batch() const;
  bool is_in_pass() const { return !pass_.expired(); }
  /// The newest loop; expired where it has ended.
  const std::weak_ptr<void>& pass() const { return pass_; }
  std::chrono::steady_clock::time_point pass_began() const { return pass_began_; }
  /// Samples that count: of this rank, of another, of all.
  std::int64_t samples() const { return is_without_shard() ? 0 : samples_of(shard_); }
  std::int64_t samples_of(int rank) const { return plan_->share(number_, rank).size; }
  std::int64_t batch_samples() const { return plan_->step(number_).size; }
  /// Of a shard in a batch of full size, on average: the same for all.
  double full_samples() const { return static_cast<double>(options_.batch_size) / shards(); }
  int world_size() const { return part_.world_size; }
  /// Every batch of an epoch is of full size, with as many samples on each rank.
  bool has_even_batches() const;
  bool is_last() const { return batches_left() == 1; }
  /// Of the epoch, with this one.
  std::int64_t batches_left() const { return plan_->steps() - number_; }
  /// How many from it on are of full size, with as many samples on each rank.
  std::int64_t even_from_here() const { return plan_->even_from(number_); }

 private:
  int shards() const { return logical_shards_ > 0 ? logical_shards_ : part_.world_size; }
  /// Shards of this rank, from the first.
  std::pair<int, int> own_shards() const;
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
  bool was_moved_ = false;  ///< by go_to(), since the boundary
  /// A loop is in the cursor's epoch.
  bool is_begun_ = false;
  /// Where the last loop was left early, until the log has it.
  std::optional<DataCursor> left_;
  std::optional<EpochPlan> plan_;
  int shard_ = 0;  ///< of the plan: that of the batch
  int turn_ = 0;   ///< of this rank's batches of a step
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
