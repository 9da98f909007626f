#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "lockstep/profile/step_timer.h"
#include "lockstep/program/progress_bar.h"
#include "lockstep/train/accelerator.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/preemption.h"
#include "lockstep/train/task.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

inline namespace internal {

class MetricFile;

/// Errors: UsageError for an option that is out of range, naming it.
void check(const TrainerOptions& options);
/// The options as given, or in a program that `lockstep replay` has started, those for the replayed
/// run.
/// Errors: UsageError if the replayed run had other logical_shards.
TrainerOptions with_replay(TrainerOptions options);
/// The callbacks that the options request; they run after the program's own.
std::vector<std::shared_ptr<Callback>> callbacks_of(const TrainerOptions& options);
/// Options of the Trainer's Accelerator.
AcceleratorOptions accelerator_options(const TrainerOptions& options);
/// Options of the loader of training data.
DataLoaderOptions train_loader_options(const TrainerOptions& options);
/// Options of a loader of validation, test or prediction data, with at most `limit` batches per
/// rank.
DataLoaderOptions evaluation_loader_options(const TrainerOptions& options, std::int64_t limit,
                                            const Accelerator& accelerator);
/// With logical_shards: seeds the generators before each shard's batch, so that random numbers of
/// an evaluation do not depend on the number of ranks. After the pass all ranks have the same seed.
void seed_evaluation(LoaderPosition& position, const TrainerOptions& options);
/// Seeds the default generators with seed + rank, and makes operators deterministic if requested.
void seed_ranks(const TrainerOptions& options, int rank);

/// Loads the weights that `evaluated` names into the module of every rank. Collective.
/// Errors: UsageError if there are none, or for weights of another module; as read_state_dict;
/// PeerFailed.
void load_weights(torch::nn::Module& module, const EvaluateOptions& evaluated,
                  const TrainerOptions& options,
                  const std::vector<std::shared_ptr<Callback>>& callbacks,
                  const Accelerator& accelerator);

/// Converts a result to a value, which a spawned process sends to its parent.
c10::IValue to_value(const FitResult& result);
c10::IValue to_value(const Metrics& metrics);
c10::IValue to_value(const at::Tensor& tensor);
/// Converts it back.
void from_value(const c10::IValue& value, FitResult& result);
void from_value(const c10::IValue& value, Metrics& metrics);
void from_value(const c10::IValue& value, at::Tensor& tensor);

/// Whether the Trainer is to start its own processes.
/// Errors: UsageError if no launcher has started as many machines as num_nodes.
bool starts_processes(const TrainerOptions& options);

/// Runs `body` in `devices` new processes; returns rank 0's result.
/// Errors: as spawn().
c10::IValue run_in_processes(const TrainerOptions& options,
                             const std::function<c10::IValue()>& body);

/// Runs `body` on all ranks: in this process under a launcher or for one device, else in new
/// processes.
template <class Body>
auto run_on_ranks(const TrainerOptions& options, const Body& body) {
  if (!starts_processes(options)) return body();
  decltype(body()) result{};
  from_value(run_in_processes(options, [&] { return to_value(body()); }), result);
  return result;
}

/// The part of Trainer::fit that does not depend on the model's type: when to log, validate, save,
/// stop and call callbacks.
/// Threads: call from the training thread.
/// Errors: what callbacks throw; Error for a loss that is not finite; UsageError; SystemError; as
/// Work::wait.
class TrainerLoop {
 public:
  /// The data that the loop follows.
  struct Data {
    std::shared_ptr<LoaderPosition> position;
    /// Runs one pass over the validation data. Empty: there is none.
    std::function<Metrics()> validate;
    bool has_scheduler = false;  ///< a learning rate scheduler
  };
  TrainerLoop(const TrainerOptions& options, std::vector<std::shared_ptr<Callback>>& callbacks,
              Accelerator& accelerator, torch::nn::Module& module,
              torch::optim::Optimizer& optimizer, Data data);
  ~TrainerLoop();

  /// Runs the training run. `epoch` is one loop over the training data, which calls the functions
  /// below for each batch.
  FitResult run(const std::function<void()>& epoch);

  /// Begins a batch, before training_step.
  StepContext begin_batch();
  /// Records the batch's loss as "train_loss".
  void log_loss(const at::Tensor& loss);
  /// Clips gradients as the options request, after backward.
  void clip_gradients();
  /// Marks the start of the optimizer's step for the StepTimer.
  void begin_update();
  /// Ends a batch; at the end of a step logs, validates and saves if they are due. True: leave the
  /// loop.
  bool end_batch();

 private:
  void begin();
  FitEnd run_epochs(const std::function<void()>& epoch);
  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point instant) {
    return std::chrono::duration<double>(Clock::now() - instant).count();
  }

  template <class Function>
  void tell(Function&& function) {
    for (const auto& callback : callbacks_) function(*callback);
  }
  void end_step(bool epoch_ends);
  /// After a recovery: sets all counts of the loop from the recovered state, to the same values on
  /// all ranks.
  void refresh();
  /// Runs collectives between steps; runs them again if a rank fails meanwhile.
  template <class Function>
  void run_on_survivors(Function&& function) {
    accelerator_.run_on_survivors([&] {
      refresh();
      function();
    });
  }
  void log_metrics();
  void write_metrics(const Metrics& metrics);
  void refuse_non_finite(const Metrics& metrics) const;
  void refuse_non_finite_parameters() const;
  std::vector<double> learning_rates() const;
  void note_learning_rates(const std::vector<double>& made) const;
  void validate();
  /// Updates the counts in the state that is saved and sent to replacements.
  void note_counts(double seconds);
  void save();
  /// Runs a write of metrics; keeps its SystemError until the state is saved.
  template <class Function>
  void write_out(Function&& function);
  void end_where_metrics_are_lost();
  bool saves() const { return options_.fast_dev_run == 0; }
  bool is_over() const;
  void log_loss_of_shards();
  bool has_means() const;
  Metrics means_of_shards() const;
  bool count_batch();
  void show(bool epoch_ends, bool validates);
  void add_phases(Metrics& metrics);
  void enter(StepPhase phase) {
    if (timer_) timer_->enter(phase);
  }

  /// Name of the metric of the task's loss.
  static constexpr const char* kTrainLoss = "train_loss";

  const TrainerOptions& options_;
  std::vector<std::shared_ptr<Callback>>& callbacks_;
  Accelerator& accelerator_;
  Data data_;
  const Duration max_duration_;
  const Duration val_check_interval_;
  const Duration save_interval_;
  TrainerState state_;
  const std::vector<at::Tensor> parameters_;
  const std::shared_ptr<StepTimer> timer_;
  MetricMeans means_;
  MetricMeans means_before_step_;
  std::int64_t recoveries_ = 0;  ///< at the last refresh()
  std::optional<Preemption> preemption_;
  std::optional<ProgressBar> bar_;
  std::unique_ptr<MetricFile> file_;
  /// Over all runs: epochs, samples, seconds.
  at::Tensor counts_;
  /// Progress when validations and snapshots were last compared with their intervals.
  TrainingTime before_{};
  std::int64_t samples_of_step_ = 0;
  bool has_step_begun_ = false;
  /// With logical_shards: sums and weights of losses and gradient norms, equal on all ranks; a
  /// recovery sends them to replacements.
  at::Tensor sums_of_shards_;
  std::optional<double> norm_of_step_;
  /// First step on this rank with a loss that is not finite, since metrics were logged; -1: none.
  std::int64_t first_bad_step_ = -1;
  std::optional<double> newest_loss_;  ///< of this rank, on the CPU
  std::int64_t logged_at_ = 0;
  std::int64_t saved_at_ = -1;
  /// Steps between exchanges of preemption notices.
  std::int64_t asks_every_ = 1;
  double seconds_before_ = 0;
  Clock::time_point begun_{};
  /// Seconds of validations and saves, outside of steps.
  double seconds_aside_ = 0;
  double logged_seconds_aside_ = 0;  ///< rank 0's
  std::exception_ptr write_error_{};
  std::int64_t written_recoveries_ = 0;  ///< when metrics were last written here
  /// The step of which metrics were first written here behind the last recovery: of an earlier
  /// writer, or as the step is made again, its lines may be there. -1: none.
  std::int64_t recovered_step_ = -1;
  bool has_written_ = false;  ///< since the ranks last asked each other for write_error_
  std::int64_t logged_samples_ = 0;
  bool is_preempted_ = false;
};

}  // namespace internal

}  // namespace lockstep
