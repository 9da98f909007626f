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
  open(state);
}

// Again where ranks were lost: meanwhile another may have been the first, and written.
void TensorBoardLogger::open(const TrainerState& state) {
  const std::int64_t recoveries = state.accelerator.recoveries();
  if (std::exchange(recoveries_, recoveries) != recoveries || !state.is_main()) writer_.reset();
  if (writer_ || !state.is_main() || state.is_dev_run) return;
  // Of a run that was killed before its first snapshot, too.
  TensorBoardWriterOptions options;
  options.purge_step = state.time.batches + 1;
  writer_ = std::make_shared<TensorBoardWriter>(
      std::filesystem::path(state.directory) / "tensorboard", options);
}

// In the file before the step ends: what a killed process has not flushed is lost.
void TensorBoardLogger::write(const TrainerState& state, const Metrics& metrics) {
  write_on_main(state.accelerator, [&] {
    open(state);
    if (!writer_) return;
    for (const auto& [name, value] : metrics) writer_->add_scalar(name, value, state.time.batches);
    writer_->flush();
  });
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
  open(state);
}

// As TensorBoardLogger::open().
void CsvLogger::open(const TrainerState& state) {
  const std::int64_t recoveries = state.accelerator.recoveries();
  if (std::exchange(recoveries_, recoveries) != recoveries || !state.is_main()) file_.reset();
  if (file_ || !state.is_main() || state.is_dev_run) return;
  file_ = std::make_shared<CsvFile>(std::filesystem::path(state.directory) / "metrics.csv");
  file_->drop_rows_after("step", static_cast<double>(state.time.batches));
  may_have_row_ = true;
}

void CsvLogger::write(const TrainerState& state, const Metrics& metrics) {
  write_on_main(state.accelerator, [&] { write_row(state, metrics); });
}

void CsvLogger::write_row(const TrainerState& state, const Metrics& metrics) {
  open(state);
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

void RunLogger::on_train_epoch_start(TrainerState& state) {
  if (log_ || !state.is_main() || state.is_dev_run) return;
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

void RunLogger::on_fit_end(TrainerState& state) {
  end(state, state.is_preempted          ? "preempted"
             : state.stop_reason.empty() ? "ended"
                                         : concat("stopped: ", state.stop_reason));
}

}  // namespace lockstep
