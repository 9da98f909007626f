#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/train/callback.h"
#include "lockstep/train/tensorboard_writer.h"

/// Callbacks for Trainer that write its metrics, beside metrics.jsonl. They are added behind those
/// that add metrics, such as LearningRateMonitor. Rank 0 writes; fast_dev_run writes nothing.
/// Errors: SystemError.
namespace lockstep {

inline namespace internal {
class CsvFile;
class RunLog;
}  // namespace internal

/// What TensorBoard shows, in tensorboard/ of the training's directory: a scalar a metric, by step.
/// After a resume points of lost steps are left out. For texts, histograms and images a program
/// has a TensorBoardWriter of its own there.
class TensorBoardLogger : public Callback {
 public:
  void on_train_epoch_start(TrainerState& state) override;
  void on_log(TrainerState& state, Metrics& metrics) override;
  void on_validation_end(TrainerState& state, const Metrics& metrics) override;
  void on_save_checkpoint(TrainerState& state) override;
  void on_exception(TrainerState& state, const std::exception& error) override;
  void on_fit_end(TrainerState& state) override;

 private:
  bool open(const TrainerState& state, std::int64_t purge_step);
  void write(const TrainerState& state, const Metrics& metrics);

  std::shared_ptr<TensorBoardWriter> writer_;
  std::int64_t recoveries_ = 0;
  /// Written at the newest step, on all ranks.
  Metrics of_step_;
  std::int64_t step_ = -1;
};

/// metrics.csv of the training's directory: a row for each set of metrics, with step, epoch,
/// samples and seconds. What earlier runs wrote of steps behind the one from which the training
/// goes on is left out. See CsvFile.
class CsvLogger : public Callback {
 public:
  void on_train_epoch_start(TrainerState& state) override;
  void on_log(TrainerState& state, Metrics& metrics) override;
  void on_validation_end(TrainerState& state, const Metrics& metrics) override;
  void on_fit_end(TrainerState& state) override;

 private:
  void open(const TrainerState& state);
  void write(const TrainerState& state, const Metrics& metrics);
  void write_row(const TrainerState& state, const Metrics& metrics);

  std::shared_ptr<CsvFile> file_;
  bool may_have_row_ = false;  ///< since open()
  std::int64_t recoveries_ = 0;
};

/// runs.jsonl of the training's directory: when each run began and ended, where it went on, and the
/// machine and versions that it ran on, for `lockstep report`: of every Trainer. See RunLog.
class RunLogger : public Callback {
 public:
  void on_train_epoch_start(TrainerState& state) override;
  void on_exception(TrainerState& state, const std::exception& error) override;
  void on_fit_end(TrainerState& state) override;

 private:
  void end(const TrainerState& state, const std::string& how);

  std::shared_ptr<RunLog> log_;
};

}  // namespace lockstep
