#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/optim/exponential_moving_average.h"
#include "lockstep/profile/trace.h"
#include "lockstep/train/callback.h"

/// Callbacks for Trainer. Names and defaults are Lightning's.
namespace lockstep {

/// Whether a smaller or a larger value of the monitored metric is better.
enum class MonitorMode { kMin, kMax };

struct EarlyStoppingOptions {
  /// A metric of the validation.
  std::string monitor = "val_loss";
  MonitorMode mode = MonitorMode::kMin;
  /// Validations without a change for the better of more than min_delta, until the training ends.
  int patience = 3;
  double min_delta = 0;
};

/// Ends the training once a metric has got no better for some validations; goes on counting after a
/// resume, and makes no further step where it had ended the training. A value that is not finite is
/// no better. Errors: UsageError without validation, and when that has no such metric.
class EarlyStopping : public Callback {
 public:
  explicit EarlyStopping(const EarlyStoppingOptions& options = {});
  /// It counts anew in each fit that does not go on.
  void on_fit_start(TrainerState& state) override;
  void on_load_checkpoint(TrainerState& state) override;
  void on_validation_end(TrainerState& state, const Metrics& metrics) override;

 private:
  void stop_when_due(TrainerState& state) const;

  EarlyStoppingOptions options_;
  /// The best value, whether there is one, and how many validations ago: with the snapshots.
  at::Tensor state_;
};

struct ModelCheckpointOptions {
  std::string monitor = "val_loss";
  MonitorMode mode = MonitorMode::kMin;
  /// How many of the best are kept.
  int save_top_k = 1;
};

/// Keeps the model's weights (state_dict) of the best validations in best/ of the training's
/// directory, as files that torch.load reads, named by epoch, step and value:
/// "epoch=3-step=120-val_loss=0.1234.pt". Each says beside the weights of which training and metric
/// it is (read_note): those of the same that lie there from before a resume count, all others are
/// left alone. Errors: as EarlyStopping; SystemError.
class ModelCheckpoint : public Callback {
 public:
  explicit ModelCheckpoint(const ModelCheckpointOptions& options = {});
  void on_fit_start(TrainerState& state) override;
  void on_validation_end(TrainerState& state, const Metrics& metrics) override;

  /// The best that is kept of the newest training in that directory; empty where there is none.
  std::string best_model_path(const std::string& directory) const;

 private:
  void keep(TrainerState& state, double value) const;
  bool is_better(double value, double than) const {
    return options_.mode == MonitorMode::kMin ? value < than : value > than;
  }

  ModelCheckpointOptions options_;
};

/// Logs the learning rate of the first group as "lr" with the training's metrics.
class LearningRateMonitor : public Callback {
 public:
  void on_log(TrainerState& state, Metrics& metrics) override;
};

/// Keeps an average of the weights, by which validations are made; with the snapshots. Added before
/// ModelCheckpoint, the weights that that keeps are the averages.
class EmaCallback : public Callback {
 public:
  explicit EmaCallback(const ExponentialMovingAverageOptions& options = {}) : options_(options) {}
  void on_fit_start(TrainerState& state) override;
  void on_train_batch_end(TrainerState& state) override;
  void on_validation_start(TrainerState& state) override;
  void on_validation_end(TrainerState& state, const Metrics& metrics) override;
  void on_validation_interrupted(TrainerState& state) override;
  void on_exception(TrainerState& state, const std::exception& error) override;

 private:
  ExponentialMovingAverageOptions options_;
  std::unique_ptr<ExponentialMovingAverage> average_;
  std::unique_ptr<AveragedWeights> applied_;
};

struct ThroughputMonitorOptions {
  /// Tokens of a sample of text; 0: the task has none.
  std::int64_t tokens_per_sample = 0;
};

/// Adds what torchtitan logs to the training's metrics, beside train_loss and samples_per_second:
///
///   grad_norm          of the newest step's gradients, where the Trainer does not log it: it does
///                      where it clips by norm, as they are before
///   memory_gib         of the rank that has most: what is reserved of its CUDA device at the most,
///                      or its resident memory on the CPU
///   memory_percent     of that device, or machine
///   tokens_per_second  with tokens_per_sample
///
/// Costs one reduction of 16 bytes each time that metrics are logged, and one pass over the
/// gradients. Errors: as Work::wait.
class ThroughputMonitor : public Callback {
 public:
  explicit ThroughputMonitor(const ThroughputMonitorOptions& options = {}) : options_(options) {}
  void on_log(TrainerState& state, Metrics& metrics) override;

 private:
  ThroughputMonitorOptions options_;
};

/// Some steps of a training, numbered from 1 as in its metrics.
struct StepRange {
  std::int64_t first = 0;
  /// The one after the last.
  std::int64_t end = 0;

  bool contains(std::int64_t step) const { return first <= step && step < end; }

  /// "10:13": steps 10, 11 and 12, as a slice in Python. `what`: for errors, as "TraceCallback:
  /// steps". Errors: UsageError for other text, and for no step.
  static StepRange parse(const std::string& text, const std::string& what);
};

struct TraceCallbackOptions {
  /// "10:13": steps 10, 11 and 12, from 1, as they are counted in metrics; of all runs together.
  std::string steps = "10:13";
  /// Note the shapes of operators' inputs.
  bool record_shapes = false;
};

/// Traces some steps of a Trainer on all ranks, and makes one timeline of it, for
/// ui.perfetto.dev: traces/steps-10-12.json of the training's directory, beside those of the ranks
/// (profile/trace.h, record/internal/trace_merge.h). Some barriers come with it, by which clocks
/// are compared. Where directories of machines are their own, rank 0 says that its timeline lacks
/// ranks and how to merge them. A run that resumes behind these steps traces nothing; one that ends
/// between them has a timeline of the steps it has run.
///
/// A rank whose trace cannot be written fails on all ranks, named. Errors: UsageError for other
/// steps and where a profiler runs already; SystemError; PeerFailed; as Work::wait.
class TraceCallback : public Callback {
 public:
  explicit TraceCallback(const TraceCallbackOptions& options = {});
  void on_train_epoch_start(TrainerState& state) override;
  void on_train_batch_end(TrainerState& state) override;
  void on_fit_end(TrainerState& state) override;
  void on_exception(TrainerState& state, const std::exception& error) override;

 private:
  void begin_where_due(TrainerState& state);
  void finish(TrainerState& state);

  TraceCallbackOptions options_;
  StepRange steps_;
  std::filesystem::path path_;
  /// While steps are traced.
  std::shared_ptr<Trace> trace_;
};

}  // namespace lockstep
