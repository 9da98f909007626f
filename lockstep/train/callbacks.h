#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/optim/exponential_moving_average.h"
#include "lockstep/optim/schedulers.h"
#include "lockstep/profile/trace.h"
#include "lockstep/train/callback.h"

/// Callbacks for Trainer. Names and defaults are Lightning's.
namespace lockstep {

/// Options of EarlyStopping.
struct EarlyStoppingOptions {
  /// A metric of the validation.
  std::string monitor = "val_loss";
  MonitorMode mode = MonitorMode::kMin;
  /// Number of validations without an improvement of more than min_delta after which the run ends.
  int patience = 3;
  double min_delta = 0;
};

/// Ends the training run when a validation metric stops improving. A resume keeps the count of
/// validations without improvement; a run that had ended makes no further step. A value that is not
/// finite is no improvement.
/// Errors: UsageError without validation data, and for a metric that validation does not log.
class EarlyStopping : public Callback {
 public:
  explicit EarlyStopping(const EarlyStoppingOptions& options = {});
  /// Resets the count; a resume loads the saved one afterwards.
  void on_fit_start(TrainerState& state) override;
  void on_load_checkpoint(TrainerState& state) override;
  void on_validation_end(TrainerState& state, const Metrics& metrics) override;

 private:
  void stop_when_due(TrainerState& state) const;

  EarlyStoppingOptions options_;
  /// Best value, whether there is one, and validations since then; saved with the snapshots.
  at::Tensor state_;
};

/// Options of ModelCheckpoint.
struct ModelCheckpointOptions {
  std::string monitor = "val_loss";
  MonitorMode mode = MonitorMode::kMin;
  /// Number of checkpoints to keep, the best ones.
  int save_top_k = 1;
};

/// Keeps the weights (state_dict) of the best validations, in best/ of the run's directory. The
/// files are for torch.load, named by epoch, step and value: "epoch=3-step=120-val_loss=0.1234.pt".
/// Each file stores the training run and metric that it belongs to (read_note). After a resume,
/// earlier files of the same run and metric still count towards save_top_k; other files are left
/// alone.
/// Errors: as EarlyStopping; SystemError.
class ModelCheckpoint : public Callback {
 public:
  explicit ModelCheckpoint(const ModelCheckpointOptions& options = {});
  void on_fit_start(TrainerState& state) override;
  void on_validation_end(TrainerState& state, const Metrics& metrics) override;

  /// The best checkpoint of the newest training run in that directory; empty without one.
  std::string best_model_path(const std::string& directory) const;

 private:
  void keep(TrainerState& state, double value, const TensorDict& weights) const;
  bool is_better(double value, double than) const {
    return options_.mode == MonitorMode::kMin ? value < than : value > than;
  }

  ModelCheckpointOptions options_;
};

/// Logs the learning rate of the first parameter group as "lr", with the training metrics.
class LearningRateMonitor : public Callback {
 public:
  void on_log(TrainerState& state, Metrics& metrics) override;
};

/// Keeps an exponential moving average of the weights and validates with it; saved with the
/// snapshots. Add it before ModelCheckpoint to make that keep the averaged weights.
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

/// Options of ThroughputMonitor.
struct ThroughputMonitorOptions {
  /// Tokens per text sample; 0: do not log tokens.
  std::int64_t tokens_per_sample = 0;
};

/// Adds torchtitan's metrics to the training metrics, beside train_loss and samples_per_second:
///
/// - grad_norm: norm of the newest step's gradients. When the Trainer clips by norm, it logs this
///   itself, with the norm before clipping.
/// - memory_gib: maximum over the ranks, in GiB, of the peak reserved CUDA memory, or of the
///   resident memory on the CPU.
/// - memory_percent: maximum over the ranks of the same, in percent of the device's or machine's
///   memory.
/// - tokens_per_second: with tokens_per_sample.
///
/// Each time metrics are logged, this costs one reduction of 16 bytes and one pass over the
/// gradients.
/// Errors: as Work::wait.
class ThroughputMonitor : public Callback {
 public:
  explicit ThroughputMonitor(const ThroughputMonitorOptions& options = {}) : options_(options) {}
  void on_log(TrainerState& state, Metrics& metrics) override;

 private:
  ThroughputMonitorOptions options_;
};

/// A half-open range of steps, numbered from 1 as in metrics.
struct StepRange {
  std::int64_t first = 0;
  /// One past the last step.
  std::int64_t end = 0;

  /// Whether the step is in the range.
  bool contains(std::int64_t step) const { return first <= step && step < end; }

  /// Parses a slice as in Python: "10:13" is steps 10, 11 and 12.
  /// `what`: the option's name for error messages, such as "TraceCallback: steps".
  /// Errors: UsageError for other text, and for an empty range.
  static StepRange parse(const std::string& text, const std::string& what);
};

/// Options of TraceCallback.
struct TraceCallbackOptions {
  /// Steps to trace, as a slice: "10:13" is steps 10, 11 and 12, numbered from 1 over all runs.
  std::string steps = "10:13";
  /// Record the input shapes of operators.
  bool record_shapes = false;
};

/// Traces some steps of a Trainer on all ranks, and merges the traces into one timeline for
/// ui.perfetto.dev: traces/steps-10-12.json in the run's directory, beside the files of the ranks.
/// A few barriers align the ranks' clocks. If the machines have separate directories, rank 0 logs
/// that its timeline lacks ranks and how to merge them. A run that resumes after these steps traces
/// nothing. A run that ends within them writes a timeline of the steps that it made.
/// Errors: if a rank cannot write its trace, all ranks fail and name it. UsageError for an invalid
/// range, and if a profiler is already running; SystemError; PeerFailed; as Work::wait.
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
  /// Set while steps are traced.
  std::shared_ptr<Trace> trace_;
};

}  // namespace lockstep
