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
}

void check(const TrainerOptions& options);
/// In a program that `lockstep replay` has started, those of the run that it makes again. Errors:
/// UsageError where the run had other logical_shards.
TrainerOptions with_replay(TrainerOptions options);
/// The callbacks that the options request; they run after the program's own.
std::vector<std::shared_ptr<Callback>> callbacks_of(const TrainerOptions& options);
AcceleratorOptions accelerator_options(const TrainerOptions& options);
DataLoaderOptions train_loader_options(const TrainerOptions& options);
DataLoaderOptions evaluation_loader_options(const TrainerOptions& options, std::int64_t limit,
                                            const Accelerator& accelerator);
/// With logical_shards: each shard's batch gets random numbers of its own, so that what is drawn in
/// an evaluation does not depend on the number of ranks; behind the pass all ranks have one seed.
void seed_evaluation(LoaderPosition& position, const TrainerOptions& options);
void seed_ranks(const TrainerOptions& options, int rank);

/// Loads the weights into the module of every rank. Collective. Errors: UsageError where there are
/// none, or of another module; as read_state_dict; PeerFailed.
void load_weights(torch::nn::Module& module, const EvaluateOptions& evaluated,
                  const TrainerOptions& options,
                  const std::vector<std::shared_ptr<Callback>>& callbacks,
                  const Accelerator& accelerator);

// What a Trainer's processes hand to the one that started them.
c10::IValue to_value(const FitResult& result);
c10::IValue to_value(const Metrics& metrics);
c10::IValue to_value(const at::Tensor& tensor);
void from_value(const c10::IValue& value, FitResult& result);
void from_value(const c10::IValue& value, Metrics& metrics);
void from_value(const c10::IValue& value, at::Tensor& tensor);

/// Whether the Trainer is to start processes of its own. Errors: UsageError where num_nodes wants
/// machines that no launcher has given.
bool starts_processes(const TrainerOptions& options);

/// `body` in `devices` new processes, and what it returned on rank 0. Errors: as spawn().
c10::IValue run_in_processes(const TrainerOptions& options,
                             const std::function<c10::IValue()>& body);

/// `body` on all ranks: in this process where it is one or the only one, else in new ones.
template <class Body>
auto run_on_ranks(const TrainerOptions& options, const Body& body) {
  if (!starts_processes(options)) return body();
  decltype(body()) result{};
  from_value(run_in_processes(options, [&] { return to_value(body()); }), result);
  return result;
}

/// The part of Trainer::fit that does not depend on types: when what is done around the batches.
class TrainerLoop {
 public:
  struct Data {
    std::shared_ptr<LoaderPosition> position;
    /// A pass over the validation data. Empty: there is none.
    std::function<Metrics()> validate;
    bool has_scheduler = false;  ///< of learning rates
  };
  TrainerLoop(const TrainerOptions& options, std::vector<std::shared_ptr<Callback>>& callbacks,
              Accelerator& accelerator, torch::nn::Module& module,
              torch::optim::Optimizer& optimizer, Data data);
  ~TrainerLoop();

  /// `epoch` is one loop over the training data, which begins and ends each batch here.
  FitResult run(const std::function<void()>& epoch);

  StepContext begin_batch();
  void log_loss(const at::Tensor& loss);
  void clip_gradients();
  void begin_update();
  /// Whether the loop is to be left.
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
  /// After ranks were lost or joined: sets all counts of the loop from the recovered state, to the
  /// same values on all ranks.
  void refresh();
  /// Collectives between steps, again where a rank fails meanwhile.
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
  /// For the state that is saved and handed to new processes.
  void note_counts(double seconds);
  void save();
  /// What writes metrics: its SystemError is kept until the training's state is saved.
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

  /// As the task's loss is logged.
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
  std::int64_t recoveries_ = 0;  ///< that refresh() knows of
  std::optional<Preemption> preemption_;
  std::optional<ProgressBar> bar_;
  std::unique_ptr<MetricFile> file_;
  /// Over all runs: epochs, samples, seconds.
  at::Tensor counts_;
  /// When it was last looked whether a validation or a snapshot is due.
  TrainingTime before_{};
  std::int64_t samples_of_step_ = 0;
  bool has_step_begun_ = false;
  /// With logical_shards: of losses and of gradient norms the sum and its weight, the same on all
  /// ranks; a recovery hands them to replacements.
  at::Tensor sums_of_shards_;
  std::optional<double> norm_of_step_;
  /// Of this rank, since metrics were logged; none: -1.
  std::int64_t first_bad_step_ = -1;
  std::optional<double> newest_loss_;  ///< of this rank, on the CPU
  std::int64_t logged_at_ = 0;
  std::int64_t saved_at_ = -1;
  /// Steps after which the ranks ask each other whether one was preempted.
  std::int64_t asks_every_ = 1;
  double seconds_before_ = 0;
  Clock::time_point begun_{};
  /// In which no step was under way: validations and saves.
  double seconds_aside_ = 0;
  double logged_seconds_aside_ = 0;  ///< rank 0's
  std::exception_ptr write_error_{};
  std::int64_t written_recoveries_ = 0;  ///< when metrics were last written here
  bool has_written_ = false;             ///< since the ranks last asked each other for write_error_
  std::int64_t logged_samples_ = 0;
  bool is_preempted_ = false;
};

}  // namespace lockstep
