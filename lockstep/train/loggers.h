#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/train/callback.h"
#include "lockstep/train/tensorboard_writer.h"

/// Callbacks for Trainer that write its metrics, beside metrics.jsonl. Add them after callbacks
/// that add metrics, such as LearningRateMonitor; TrainerOptions::logger does so. Rank 0 writes;
/// with fast_dev_run nothing is written.
/// Errors: SystemError when a file cannot be written.
namespace lockstep {

inline namespace internal {
class CsvFile;
class RunLog;
}  // namespace internal

/// Writes metrics as TensorBoard scalars, one tag per metric, by step. Files are in tensorboard/ of
/// the run's directory. After a resume, TensorBoard drops the points of steps that the resumed run
/// repeats. For texts, histograms and images, open a TensorBoardWriter of your own in that folder.
class TensorBoardLogger : public Callback {
 public:
  void on_train_epoch_start(TrainerState& state) override;
  void on_train_batch_end(TrainerState& state) override;
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
  Metrics of_step_;  ///< metrics written since the newest step; kept on all ranks
};

/// Writes metrics.csv in the run's directory: one row per set of metrics, with the columns step,
/// epoch, samples and seconds. A resumed run removes the rows of later steps than the one from
/// which it resumes.
class CsvLogger : public Callback {
 public:
  void on_train_epoch_start(TrainerState& state) override;
  void on_train_batch_end(TrainerState& state) override;
  void on_log(TrainerState& state, Metrics& metrics) override;
  void on_validation_end(TrainerState& state, const Metrics& metrics) override;
  void on_fit_end(TrainerState& state) override;

 private:
  void open(const TrainerState& state, std::int64_t last_step);
  void write(const TrainerState& state, const Metrics& metrics);
  void write_row(const TrainerState& state, const Metrics& metrics);

  std::shared_ptr<CsvFile> file_;
  bool may_have_row_ = false;  ///< the next row may already be in the file that open() opened
  std::int64_t recoveries_ = 0;
};

/// Writes runs.jsonl in the run's directory, for `lockstep report`: start, end, first step, ranks,
/// machine and versions of each run. Every Trainer has one.
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
