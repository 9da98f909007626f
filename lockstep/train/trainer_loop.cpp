#include "lockstep/train/trainer_loop.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/snapshot/snapshot_directory.h"
#include "lockstep/train/internal/metric_file.h"

namespace lockstep {
namespace {

// Of what is saved with the accelerator's state: epochs, samples, seconds.
constexpr const char* kName = "trainer";
// Of a training with logical_shards, too: sums since metrics were logged.
constexpr const char* kSumsName = "trainer_sums_of_shards";
enum SumOfShards { kLossSum, kLossWeight, kNormSum, kNormWeight, kSumsOfShards };

std::string val_interval_of(const TrainerOptions& options) {
  const bool is_dev_run = options.fast_dev_run > 0 && !options.val_check_interval.empty();
  return is_dev_run ? "1ep" : options.val_check_interval;
}

// A training that begins anew beside another's snapshots would later go on from those.
void check_unused(const std::string& folder) {
  if (const auto newest = SnapshotDirectory(folder).newest()) {
    throw UsageError(concat("Trainer: resume is false, and ", folder, " has snapshots, the newest ",
                            newest->file_name(), "; choose another directory, or remove them"));
  }
}

TrainingTime time_of(const at::Tensor& counts) {
  const double* const values = counts.const_data_ptr<double>();
  return {.epochs = static_cast<std::int64_t>(values[0]),
          .samples = static_cast<std::int64_t>(values[1]),
          .seconds = values[2]};
}

// This rank has left the others. The state is saved, or it had a shard that others have, too.
class PreemptedInRecovery : public Error {
 public:
  PreemptedInRecovery() : Error("Trainer: preempted while ranks were replaced") {}
};

std::string duration_of(const TrainerOptions& options) {
  return options.fast_dev_run > 0 ? "1ep" : options.max_duration;
}

}  // namespace

bool TrainerState::is_main() const {
  return accelerator.is_main_process();
}

double TrainerState::learning_rate() const {
  return optimizer.param_groups().front().options().get_lr();
}

TrainerLoop::TrainerLoop(const TrainerOptions& options,
                         std::vector<std::shared_ptr<Callback>>& callbacks,
                         Accelerator& accelerator, torch::nn::Module& module,
                         torch::optim::Optimizer& optimizer, Data data)
    : options_(options),
      callbacks_(callbacks),
      accelerator_(accelerator),
      data_(std::move(data)),
      max_duration_(Duration::parse(duration_of(options), "Trainer: max_duration")),
      val_check_interval_(Duration::parse(val_interval_of(options), "Trainer: val_check_interval")),
      save_interval_(Duration::parse(options.save_interval, "Trainer: save_interval")),
      state_{.accelerator = accelerator,
             .module = module,
             .optimizer = optimizer,
             .directory = options.directory,
             .is_dev_run = options.fast_dev_run > 0,
             .has_validation = data_.validate && val_check_interval_},
      parameters_(module.parameters()),
      timer_(accelerator.options().ddp.step_timer),
      counts_(at::zeros({3}, at::kDouble)),
      sums_of_shards_(at::zeros({kSumsOfShards}, at::kDouble)) {
  // `lockstep snapshot diff` does not compare the seconds.
  accelerator.register_for_checkpointing(kName, {{"epochs_samples_seconds", counts_}});
  if (options.logical_shards == 0) return;
  accelerator.register_state(
      {.name = kSumsName,
       .state_dict =
           [sums = sums_of_shards_] {
             return TensorDict{{"sums", sums}};
           },
       .load_state_dict = [sums = sums_of_shards_](
                              const TensorDict& values) { sums.copy_(values.front().second); },
       .is_optional = true});
}

TrainerLoop::~TrainerLoop() = default;

FitResult TrainerLoop::run(const std::function<void()>& epoch) {
  FitResult result;
  bool has_left = false;
  try {
    begin();
    try {
      result.end = run_epochs(epoch);
    } catch (const PreemptedInRecovery&) {
      result.end = FitEnd::kPreempted;
      is_preempted_ = has_left = true;
      const bool has_saved = accelerator_.options().strategy != Strategy::kFullyShard;
      if (has_saved) tell([&](Callback& one) { one.on_save_checkpoint(state_); });
    }
    state_.is_preempted = is_preempted_;
    // `lockstep scale` ends a rank as a preemption does, and the training run continues.
    if (!has_left || state_.is_main()) tell([&](Callback& one) { one.on_fit_end(state_); });
  } catch (const std::exception& error) {
    // What a callback throws at that would hide the cause.
    tell([&](Callback& one) {
      try {
        one.on_exception(state_, error);
      } catch (const std::exception& second) {
        log(LogLevel::kWarning,
            concat("Trainer: a callback's on_exception failed: ", second.what()));
      }
    });
    throw;
  }
  result.reason = state_.stop_reason;
  result.time = state_.time;
  result.metrics = state_.metrics;
  return result;
}

void TrainerLoop::begin() {
  tell([&](Callback& one) { one.on_fit_start(state_); });
  bool is_resumed = false;
  if (saves()) {
    const bool replaces_another = accelerator_.is_step_void();
    if (!options_.resume && !replaces_another) check_unused(accelerator_.options().directory);
    const std::vector<double> rates = learning_rates();
    is_resumed = accelerator_.load_state();
    if (is_resumed && !data_.has_scheduler && accelerator_.recoveries() == 0) {
      note_learning_rates(rates);
    }
    if (state_.is_main()) file_ = std::make_unique<MetricFile>(options_.directory);
    preemption_.emplace(PreemptionOptions{.process_group = accelerator_.process_group()});
    accelerator_.set_while_waiting([this] {
      if (!preemption_->has_notice()) return;
      tell([&](Callback& one) { one.on_validation_interrupted(state_); });
      if (accelerator_.save_and_leave()) throw PreemptedInRecovery();
      throw Error(
          "Trainer: preempted while ranks were replaced, and this rank does not have the complete "
          "state of a step to save; if all ranks end, the next run resumes from the newest "
          "snapshot");
    });
  }
  recoveries_ = accelerator_.recoveries();
  state_.time = time_of(counts_);
  state_.time.batches = accelerator_.steps();
  before_ = state_.time;
  seconds_before_ = state_.time.seconds;
  logged_at_ = saved_at_ = state_.time.batches;
  if (recoveries_ > 0) saved_at_ = -1;  // As refresh() has it.
  logged_samples_ = state_.time.samples;
  state_.epoch = data_.position->cursor().epoch;
  if (is_resumed) tell([&](Callback& one) { one.on_load_checkpoint(state_); });
  if (file_) file_->begin_run(state_.time, state_.epoch);
  begun_ = Clock::now();
  const std::int64_t batches = data_.position->batches_per_epoch();
  const std::int64_t accumulated = options_.gradient_accumulation_steps;
  const std::int64_t steps = (batches + accumulated - 1) / accumulated;
  const auto epochs = max_duration_.epochs(steps, data_.position->dataset_size());
  bar_.emplace(ProgressBarOptions{.epochs = epochs.value_or(state_.time.epochs + 1),
                                  .steps_per_epoch = steps,
                                  .first_epoch = state_.time.epochs,
                                  .rank = accelerator_.process_index(),
                                  .enabled = options_.enable_progress_bar});
  if (is_resumed && recoveries_ == 0 && options_.enable_progress_bar && state_.is_main()) {
    bar_->print(concat("resumed from the newest snapshot in ", options_.directory, ", after step ",
                       state_.time.batches));
  }
}

std::vector<double> TrainerLoop::learning_rates() const {
  std::vector<double> rates;
  for (const auto& group : state_.optimizer.param_groups())
    rates.push_back(group.options().get_lr());
  return rates;
}

// The snapshot's optimizer goes on as it was, whatever the program would make now.
void TrainerLoop::note_learning_rates(const std::vector<double>& made) const {
  const std::vector<double> loaded = learning_rates();
  if (!state_.is_main() || loaded == made || loaded.empty() || made.empty()) return;
  log(LogLevel::kWarning,
      concat(
          "Trainer: using learning rate ", loaded.front(), " of the snapshot, not ", made.front(),
          " of configure_optimizer; to change it, set it in a callback's on_train_epoch_start, or "
          "start in another directory"));
}

FitEnd TrainerLoop::run_epochs(const std::function<void()>& epoch) {
  for (;;) {
    while (!is_over()) {
      state_.epoch = data_.position->cursor().epoch;
      tell([&](Callback& one) { one.on_train_epoch_start(state_); });
      enter(StepPhase::kData);
      epoch();
    }
    const bool others_ended = accelerator_.is_training_over();
    refresh();
    accelerator_.wait_for_saves();
    end_where_metrics_are_lost();
    // It is not the end: what is started later resumes from the snapshot.
    if (is_preempted_) {
      accelerator_.leave_training();
      return FitEnd::kPreempted;
    }
    // This rank has received the state of the end, and with it what ended the training.
    if (others_ended) tell([&](Callback& one) { one.on_load_checkpoint(state_); });
    if (accelerator_.try_end_training()) break;
    // The last step comes again, and with it what ended the training.
    state_.stop_reason.clear();
    refresh();
  }
  return state_.stop_reason.empty() ? FitEnd::kDone : FitEnd::kStopped;
}

bool TrainerLoop::is_over() const {
  return accelerator_.is_training_over() || is_preempted_ || !state_.stop_reason.empty() ||
         max_duration_.reached(state_.time);
}

void TrainerLoop::refresh() {
  if (accelerator_.recoveries() == recoveries_) return;
  recoveries_ = accelerator_.recoveries();
  const std::int64_t steps_made_again = state_.time.batches - accelerator_.steps();
  if (steps_made_again > 0) means_ = steps_made_again == 1 ? means_before_step_ : MetricMeans();
  state_.time = time_of(counts_);
  state_.time.batches = accelerator_.steps();
  state_.epoch = data_.position->cursor().epoch;
  before_ = state_.time;
  logged_at_ = state_.time.batches;
  logged_samples_ = state_.time.samples;
  saved_at_ = -1;
  asks_every_ = 1;
  samples_of_step_ = 0;
  has_step_begun_ = false;
  seconds_aside_ = logged_seconds_aside_ = 0;
  if (preemption_) preemption_->set_process_group(accelerator_.process_group());
}

StepContext TrainerLoop::begin_batch() {
  refresh();
  if (!std::exchange(has_step_begun_, true)) means_before_step_ = means_;
  enter(StepPhase::kOther);
  return StepContext(means_, data_.position->samples(), data_.position->cursor().batches - 1);
}

void TrainerLoop::log_loss(const at::Tensor& loss) {
  const std::int64_t samples = data_.position->samples();
  if (options_.logical_shards == 0) means_.log(kTrainLoss, loss, static_cast<double>(samples));
  if (!loss.is_cpu() || samples == 0) return;  // Not waited for.
  newest_loss_ = loss.item<double>();
  if (first_bad_step_ >= 0 || std::isfinite(*newest_loss_)) return;
  first_bad_step_ = state_.time.batches + 1;  // Which this one is to be.
}

// Every rank has the same, and a mean over ranks would depend on their number.
void TrainerLoop::log_loss_of_shards() {
  if (options_.logical_shards == 0) return;
  auto* const sum = sums_of_shards_.mutable_data_ptr<double>();
  const auto samples = static_cast<double>(data_.position->batch_samples());
  sum[kLossSum] += accelerator_.loss() * samples;
  sum[kLossWeight] += samples;
  if (!norm_of_step_) return;
  sum[kNormSum] += *std::exchange(norm_of_step_, std::nullopt);
  sum[kNormWeight] += 1;
}

bool TrainerLoop::has_means() const {
  return !means_.empty() || sums_of_shards_.const_data_ptr<double>()[kLossWeight] > 0;
}

Metrics TrainerLoop::means_of_shards() const {
  const auto* const sum = sums_of_shards_.const_data_ptr<double>();
  Metrics means;
  if (sum[kNormWeight] > 0) means.emplace_back("grad_norm", sum[kNormSum] / sum[kNormWeight]);
  if (sum[kLossWeight] > 0) means.emplace_back(kTrainLoss, sum[kLossSum] / sum[kLossWeight]);
  return means;
}

void TrainerLoop::clip_gradients() {
  if (options_.gradient_clip_val <= 0) return;
  if (options_.gradient_clip_algorithm == GradientClipAlgorithm::kNorm) {
    const double norm = accelerator_.clip_grad_norm_(parameters_, options_.gradient_clip_val);
    if (!accelerator_.sync_gradients()) return;
    if (options_.logical_shards > 0) {
      norm_of_step_ = norm;
    } else {
      means_.log("grad_norm", norm, 1);
    }
  } else {
    accelerator_.clip_grad_value_(parameters_, options_.gradient_clip_val);
  }
}

void TrainerLoop::begin_update() {
  enter(StepPhase::kOptimizer);
}

bool TrainerLoop::end_batch() {
  enter(StepPhase::kOther);
  const bool is_left = count_batch();
  enter(StepPhase::kData);
  return is_left;
}

bool TrainerLoop::count_batch() {
  // First: what is counted below belongs to a step that is not made again.
  if (!accelerator_.state_->complete_step()) {  // Its batches come again.
    means_ = means_before_step_;
    samples_of_step_ = 0;
    has_step_begun_ = false;
    return false;
  }
  const bool is_step_counted = options_.logical_shards > 0 && !accelerator_.sync_gradients();
  if (!is_step_counted) samples_of_step_ += data_.position->batch_samples();
  if (!accelerator_.sync_gradients()) return false;
  has_step_begun_ = false;
  log_loss_of_shards();
  const bool epoch_ends = data_.position->is_last();
  state_.step_was_skipped = accelerator_.optimizer_step_was_skipped();
  state_.time.batches = accelerator_.steps();
  state_.time.samples += std::exchange(samples_of_step_, 0);
  if (epoch_ends) ++state_.time.epochs;
  note_counts(state_.time.seconds);
  end_step(epoch_ends);
  // Within the loop over the data: once that is left, the rest of the epoch is given up.
  if (is_over() && saves() && saved_at_ != state_.time.batches) save();
  return is_over();
}

void TrainerLoop::end_step(bool epoch_ends) {
  // Before ranks may be lost, after which before_ is this step. Seconds that pass from here on are
  // looked at after the next step.
  const TrainingTime before = std::exchange(before_, state_.time);
  tell([&](Callback& one) { one.on_train_batch_end(state_); });
  const double* const loss = find_metric(state_.metrics, kTrainLoss);
  bar_->step_done(loss ? std::optional(*loss) : newest_loss_);
  if (epoch_ends || state_.time.batches - logged_at_ >= options_.log_every_n_steps) log_metrics();
  if (epoch_ends) tell([&](Callback& one) { one.on_train_epoch_end(state_); });
  const bool validates = data_.validate && val_check_interval_.due(before, before_);
  if (validates) validate();
  show(epoch_ends, validates);
  end_where_metrics_are_lost();
  if (!saves()) return;
  if (state_.time.batches % asks_every_ == 0) {
    run_on_survivors([&] { is_preempted_ = preemption_->requested(); });
  }
  const bool is_wanted = std::exchange(state_.save_requested, false);
  if (is_wanted || save_interval_.due(before, before_)) save();
}

void TrainerLoop::show(bool epoch_ends, bool validates) {
  if (!options_.enable_progress_bar) return;
  if (epoch_ends) {
    bar_->epoch_done(concat("epoch ", state_.time.epochs, lockstep::describe(state_.metrics)));
  } else if (validates) {
    bar_->print(concat("step ", state_.time.batches, lockstep::describe(state_.metrics)));
  }
}

void TrainerLoop::note_counts(double seconds) {
  auto* const counts = counts_.mutable_data_ptr<double>();
  counts[0] = static_cast<double>(state_.time.epochs);
  counts[1] = static_cast<double>(state_.time.samples);
  counts[2] = seconds;
}

void TrainerLoop::save() {
  if (has_means()) log_metrics();  // Which a loss that is not finite ends.
  const Clock::time_point began = Clock::now();
  refuse_non_finite_parameters();
  note_counts(seconds_before_ + seconds_since(begun_));
  accelerator_.save_state();
  note_counts(state_.time.seconds);
  saved_at_ = state_.time.batches;
  tell([&](Callback& one) { one.on_save_checkpoint(state_); });
  seconds_aside_ += seconds_since(began);
  // Before ranks may join, which have written nothing.
  end_where_metrics_are_lost();
}

}  // namespace lockstep
