#include "lockstep/data/loader_position.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/data/internal/sample_log.h"
#include "lockstep/data/internal/shard_plan.h"

namespace lockstep {
namespace {

BatchPart part_in(const ProcessGroup& group) {
  if (!group) return {};
  return {.rank = group.rank(), .world_size = group.world_size()};
}

EpochPlanOptions plan_options(std::optional<std::size_t> dataset_size,
                              const DataLoaderOptions& options, int shards) {
  if (options.logical_shards < 0) {
    throw UsageError(concat("DataLoader: logical_shards is ", options.logical_shards,
                            ", it must be positive, or 0 for one shard per rank"));
  }
  if (options.batch_size < 1) {
    throw UsageError(
        concat("DataLoader: batch_size is ", options.batch_size, ", it must be positive"));
  }
  if (!dataset_size) {
    throw UsageError(
        "DataLoader: size() of the dataset returns none; return the number of samples, which are "
        "distributed over the ranks");
  }
  if (*dataset_size == 0) {
    throw UsageError("DataLoader: the dataset is empty; check its source");
  }
  EpochPlanOptions plan{.dataset_size = static_cast<std::int64_t>(*dataset_size),
                        .batch_size = options.batch_size,
                        .tail = options.drop_last ? EpochTail::kDrop : EpochTail::kKeep,
                        .limit_batches = options.limit_batches};
  if (!options.split_batches) plan.batch_size *= shards;
  if (options.drop_last && plan.dataset_size < plan.batch_size) {
    throw UsageError(concat("DataLoader: drop_last leaves no batch of ", plan.batch_size,
                            " samples of all ranks in a dataset of ", plan.dataset_size,
                            "; make the batch smaller, or keep the last one"));
  }
  return plan;
}

}  // namespace

LoaderPosition::LoaderPosition(std::optional<std::size_t> dataset_size,
                               const DataLoaderOptions& options)
    : logical_shards_(options.logical_shards),
      part_(part_in(group_or_default(options.process_group))),
      cursor_{.seed = options.seed} {
  options_ = plan_options(dataset_size, options, shards());
  order_ = EpochOrder(options_.dataset_size, options.shuffle);
  if (!options.split_batches) batch_size_of_shard_ = options.batch_size;
}

std::pair<int, int> LoaderPosition::local_shards() const {
  if (logical_shards_ == 0) return {part_.rank, part_.rank + 1};
  const ShardBlock own = shards_of_rank(logical_shards_, part_.world_size, part_.rank);
  return {own.begin, own.end};
}

int LoaderPosition::batches_of_rank() const {
  const auto [begin, end] = local_shards();
  return std::max(end - begin, 1);
}

int LoaderPosition::shard_of_turn(std::int64_t turn) const {
  const auto [begin, end] = local_shards();
  return begin < end ? begin + static_cast<int>(turn) : shards();
}

void LoaderPosition::set_shard_visit(std::function<void(const ShardPlace&)> visit) {
  shard_visit_ = std::move(visit);
}

void LoaderPosition::visit_next_shard() {
  if (!shard_visit_) return;
  ShardPlace next{.epoch = cursor_.epoch, .batch = cursor_.batches, .shard = shards()};
  if (is_within_step()) {
    --next.batch;  // The cursor is behind the step.
    next.shard = shard_of_turn(turn_ + 1);
  } else if (batches_behind_cursor() > 0) {
    next.shard = shard_of_turn(0);
  }
  shard_visit_(next);
}

std::int64_t LoaderPosition::batches_per_epoch() const {
  return EpochPlan(options_, {}, shards()).steps();
}

bool LoaderPosition::has_even_batches() const {
  const EpochPlan plan(options_, {}, shards());
  return plan.even_from(0) == plan.steps();
}

void LoaderPosition::check_cursor(const DataCursor& cursor) const {
  if (cursor.epoch < 0 || cursor.consumed < 0 || cursor.consumed > options_.dataset_size) {
    throw UsageError(concat("DataLoader: cannot resume at sample ", cursor.consumed, " of epoch ",
                            cursor.epoch, ": this dataset has ", options_.dataset_size,
                            " samples; give the dataset that was saved"));
  }
}

void LoaderPosition::set_cursor(const DataCursor& cursor) {
  check_cursor(cursor);
  if (std::exchange(is_begun_, false)) {
    number_ = plan_->steps();
    asked_ = number_ * batches_of_rank();
  }
  const bool is_behind_last = EpochPlan(options_, cursor, shards()).steps() == 0;
  move(is_behind_last ? DataCursor{.seed = cursor.seed, .epoch = cursor.epoch + 1} : cursor);
}

void LoaderPosition::move(const DataCursor& cursor) {
  left_.reset();
  const DataCursor before = std::exchange(cursor_, cursor);
  if (log_ && cursor_ != before) log_->go_to(log_number_, cursor_);
}

DataCursor LoaderPosition::cursor_to_save() {
  log_left();
  const bool is_done = is_begun_ && has_batch() && is_last();
  return is_done ? DataCursor{.seed = cursor_.seed, .epoch = cursor_.epoch + 1} : cursor_;
}

void LoaderPosition::set_log(std::shared_ptr<SampleLog> log, int number,
                             const std::optional<DataCursor>& from) {
  log_ = std::move(log);
  log_number_ = number;
  if (!log_) return;
  log_->begin({.number = number,
               .dataset_size = options_.dataset_size,
               .seed = cursor_.seed,
               .least_of_epoch = options_.least_of_epoch(),
               .limit_batches = options_.limit_batches});
  const DataCursor begins = from.value_or(cursor_);
  if (from || begins != DataCursor{.seed = cursor_.seed}) log_->go_to(number, begins);
}

void LoaderPosition::set_boundary_visit(std::function<void(LoaderBoundary)> visit) {
  visit_ = std::move(visit);
}

bool LoaderPosition::visit_boundary(LoaderBoundary boundary) {
  // Whatever the number of ranks becomes: what the epoch has left out stays so.
  if (boundary == LoaderBoundary::kLoopEnds) cursor_ = plan_->end();
  if (visit_) visit_(boundary);
  return std::exchange(was_moved_, false);
}

std::int64_t LoaderPosition::batches_behind_cursor() const {
  return EpochPlan(options_, cursor_, shards()).steps();
}

void LoaderPosition::set_process_group(const ProcessGroup& group) {
  set_part(part_in(group));
}

void LoaderPosition::set_part(const BatchPart& part) {
  part_ = part;
  if (batch_size_of_shard_ > 0) options_.batch_size = batch_size_of_shard_ * shards();
}

void LoaderPosition::go_to(const DataCursor& cursor, const ProcessGroup& group) {
  check_cursor(cursor);
  set_process_group(group);
  is_begun_ = false;
  number_ = -1;
  was_moved_ = true;
  move(cursor);
}

void LoaderPosition::leave_epoch() {
  left_ = cursor_;
  end_epoch();
  number_ = -1;
}

void LoaderPosition::end_epoch() {
  cursor_ = {.seed = cursor_.seed, .epoch = cursor_.epoch + 1};
  is_begun_ = false;
}

void LoaderPosition::log_left() {
  const auto left = std::exchange(left_, std::nullopt);
  if (left && log_) log_->leave(log_number_, *left);
}

void LoaderPosition::begin_epoch() {
  if (is_begun_) leave_epoch();  // By a loop within the loop.
  log_left();
  is_begun_ = true;
  plan_.emplace(options_, cursor_, shards());
  shard_ = shard_of_turn(0);
  turn_ = 0;
  order_.set_epoch(cursor_.seed, cursor_.epoch);
  number_ = -1;
  asked_ = 0;
}

std::shared_ptr<void> LoaderPosition::begin_pass() {
  const std::shared_ptr<void> pass(
      this, [number = ++passes_](LoaderPosition* position) { position->end_pass(number); });
  pass_ = pass;
  pass_began_ = std::chrono::steady_clock::now();
  return pass;
}

void LoaderPosition::end_pass(std::uint64_t number) {
  if (number == passes_ && is_begun_) leave_epoch();
}

void LoaderPosition::advance() {
  if (!is_begun_) return;  // The cursor was set meanwhile.
  if (has_batch() && !is_last_shard()) {
    shard_ = shard_of_turn(++turn_);
    return;
  }
  ++number_;
  turn_ = 0;
  shard_ = shard_of_turn(0);
  if (has_batch()) {
    cursor_ = plan_->cursor_after(number_);
    if (log_) {
      log_->batch({.number = log_number_,
                   .epoch = cursor_.epoch,
                   .samples = plan_->step(number_),
                   .is_last = is_last()},
                  own_samples());
    }
    return;
  }
  end_epoch();
}

// Of the step, by this rank's shards.
std::vector<std::size_t> LoaderPosition::own_samples() const {
  const auto [begin, end] = local_shards();
  SampleRange all = begin < end ? plan_->share(number_, begin) : SampleRange{};
  for (int shard = begin + 1; shard < end; ++shard) all.size += plan_->share(number_, shard).size;
  return order_.samples(all);
}

bool LoaderPosition::has_batch() const {
  return plan_ && number_ >= 0 && number_ < plan_->steps();
}

std::optional<std::vector<std::size_t>> LoaderPosition::next_indices() {
  const std::int64_t step = asked_ / batches_of_rank();
  if (step >= plan_->steps()) return std::nullopt;
  const int shard = shard_of_turn(asked_++ % batches_of_rank());
  if (logical_shards_ == 0) return order_.samples(plan_->share_or_padding(step, shard));
  // A batch that does not count is that of the first shard, as layers may refuse a single sample.
  const SampleRange own = shard < shards() ? plan_->share(step, shard) : SampleRange{};
  return order_.samples(own.size > 0 ? own : plan_->share(step, 0));
}

}  // namespace lockstep
