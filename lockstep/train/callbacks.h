#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/optim/exponential_moving_average.h"
#include "lockstep/train/callback.h"

/// Callbacks for Trainer. Names and defaults are Lightning's.
namespace lockstep {

struct EarlyStoppingOptions {
  /// Of the validation.
  std::string monitor = "val_loss";
  /// "min" or "max".
  std::string mode = "min";
  /// Validations without a change for the better of more than min_delta, until the training ends.
  int patience = 3;
  double min_delta = 0;
};

/// Ends the training once a metric has got no better for some validations; goes on counting after a
/// resume, and makes no further step where it had ended the training. A value that is not finite is
/// no better. Errors: UsageError for another mode, without validation, and when that has no such
/// metric.
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
  std::string mode = "min";
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
  std::string best_model_path(const std::string& root_dir) const;

 private:
  bool is_better(double value, double than) const {
    return options_.mode == "min" ? value < than : value > than;
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
  void on_exception(TrainerState& state, const std::exception& error) override;

 private:
  ExponentialMovingAverageOptions options_;
  std::unique_ptr<ExponentialMovingAverage> average_;
  std::unique_ptr<AveragedWeights> applied_;
};

}  // namespace lockstep
