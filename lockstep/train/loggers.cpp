#include "lockstep/train/loggers.h"

#include <filesystem>
#include <string>
#include <utility>

#include <torch/version.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/record/internal/csv_file.h"
#include "lockstep/record/internal/run_log.h"
#include "lockstep/train/accelerator.h"
#include "lockstep/train/internal/write_on_main.h"

namespace lockstep {

// Where the training goes on is known by then.
void TensorBoardLogger::on_train_epoch_start(TrainerState& state) {
  open(state, state.time.batches + 1);
}

// Again where ranks were lost: meanwhile another may have been the first, and written. True: there
// is a new file.
bool TensorBoardLogger::open(const TrainerState& state, std::int64_t purge_step) {
  const std::int64_t recoveries = state.accelerator.recoveries();
  if (std::exchange(recoveries_, recoveries) != recoveries || !state.is_main()) writer_.reset();
  if (writer_ || !state.is_main() || state.is_dev_run) return false;
  // Of a run that was killed before its first snapshot, too.
  TensorBoardWriterOptions options;
  options.purge_step = purge_step;
  writer_ = std::make_shared<TensorBoardWriter>(
      std::filesystem::path(state.directory) / "tensorboard", options);
  return true;
}

// In the file before the step ends: what a killed process has not flushed is lost.
void TensorBoardLogger::write(const TrainerState& state, const Metrics& metrics) {
  const std::int64_t step = state.time.batches;
  of_step_.insert(of_step_.end(), metrics.begin(), metrics.end());
  write_on_main(state.accelerator, [&] {
    // A rank that failed may have written these, which nobody knows: of a new file all points of
    // the step count, of those before it none.
    const bool is_new = open(state, step);
    if (!writer_) return;
    for (const auto& [name, value] : is_new ? of_step_ : metrics)
      writer_->add_scalar(name, value, step);
    writer_->flush();
  });
}

// Which may be made again.
void TensorBoardLogger::on_train_batch_end(TrainerState&) {
  of_step_.clear();
}

void TensorBoardLogger::on_log(TrainerState& state, Metrics& metrics) {
  write(state, metrics);
}

void TensorBoardLogger::on_validation_end(TrainerState& state, const Metrics& metrics) {
  write(state, metrics);
}

void TensorBoardLogger::on_save_checkpoint(TrainerState&) {
  if (writer_) writer_->flush();
}

void TensorBoardLogger::on_exception(TrainerState&, const std::exception&) {
  writer_.reset();
}

void TensorBoardLogger::on_fit_end(TrainerState&) {
  if (writer_) writer_->flush();
  writer_.reset();
}

void CsvLogger::on_train_epoch_start(TrainerState& state) {
  open(state, state.time.batches);
}

// Where the step is made again, the file has its rows.
void CsvLogger::on_train_batch_end(TrainerState& state) {
  open(state, state.time.batches - 1);
}

// As TensorBoardLogger::open().
void CsvLogger::open(const TrainerState& state, std::int64_t last_step) {
  const std::int64_t recoveries = state.accelerator.recoveries();
  if (std::exchange(recoveries_, recoveries) != recoveries || !state.is_main()) file_.reset();
  if (file_ || !state.is_main() || state.is_dev_run) return;
  file_ = std::make_shared<CsvFile>(std::filesystem::path(state.directory) / "metrics.csv");
  file_->drop_rows_after("step", static_cast<double>(last_step));
  may_have_row_ = true;
}

void CsvLogger::write(const TrainerState& state, const Metrics& metrics) {
  write_on_main(state.accelerator, [&] { write_row(state, metrics); });
}

void CsvLogger::write_row(const TrainerState& state, const Metrics& metrics) {
  open(state, state.time.batches);
  if (!file_) return;
  CsvFile::Row row = {{"step", static_cast<double>(state.time.batches)},
                      {"epoch", static_cast<double>(state.epoch)},
                      {"samples", static_cast<double>(state.time.samples)},
                      {"seconds", state.time.seconds}};
  row.insert(row.end(), metrics.begin(), metrics.end());
  // Of a rank that failed behind its write.
  if (std::exchange(may_have_row_, false) && file_->ends_with(row, "step")) return;
  file_->write(row);
}

void CsvLogger::on_log(TrainerState& state, Metrics& metrics) {
  write(state, metrics);
}

void CsvLogger::on_validation_end(TrainerState& state, const Metrics& metrics) {
  write(state, metrics);
}

void CsvLogger::on_fit_end(TrainerState&) {
  file_.reset();
}

// Rank 0 alone, also where a survivor writes in its place: its replacement begins the run anew.
void RunLogger::on_train_epoch_start(TrainerState& state) {
  const bool is_first = state.accelerator.process_index() == 0;
  if (log_ || !is_first || state.is_dev_run) return;
  log_ = std::make_shared<RunLog>(state.directory);
  log_->begin({.step = state.time.batches,
               .ranks = state.accelerator.num_processes(),
               .versions = {{"libtorch", TORCH_VERSION}}});
}

void RunLogger::end(const TrainerState& state, const std::string& how) {
  if (log_) log_->end(state.time.batches, how);
  log_.reset();
}

void RunLogger::on_exception(TrainerState& state, const std::exception& error) {
  end(state, concat("error: ", error.what()));
}

// A replacement of rank 0 may have joined behind the last epoch's beginning.
void RunLogger::on_fit_end(TrainerState& state) {
  const bool replaces_first =
      state.accelerator.process_index() == 0 && state.accelerator.recoveries() > 0;
  if (!log_ && replaces_first && !state.is_dev_run) {
    log_ = std::make_shared<RunLog>(state.directory);
  }
  end(state, state.is_preempted          ? "preempted"
             : state.stop_reason.empty() ? "ended"
                                         : concat("stopped: ", state.stop_reason));
}

}  // namespace lockstep
