#include "lockstep/train/callbacks.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iomanip>
#include <optional>
#include <sstream>
#include <system_error>
#include <vector>

#include <ATen/ops/zeros.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/state_dict.h"
#include "lockstep/train/accelerator.h"
#include "lockstep/train/internal/write_on_main.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kBestFolder = "best";

// In EarlyStopping's state.
constexpr std::size_t kBest = 0;
constexpr std::size_t kKnown = 1;
constexpr std::size_t kWaited = 2;

void check_validates(const char* who, const TrainerState& state) {
  if (state.has_validation) return;
  throw UsageError(concat(who,
                          ": no validation, whose metrics it needs; pass validation data to "
                          "fit() and set val_check_interval"));
}

double metric_of(const char* who, const std::string& monitor, const Metrics& metrics) {
  if (const double* const value = find_metric(metrics, monitor)) return *value;
  std::string names;
  for (const auto& [name, value] : metrics) names += concat(names.empty() ? "" : ", ", name);
  throw UsageError(concat(who, ": the validation has no metric '", monitor, "'; it has ",
                          names.empty() ? "none" : names));
}

struct BestFile {
  fs::path path;
  std::string training;
  double value = 0;
  std::int64_t step = 0;
};

// What the file's note says; nothing where it is of another metric, or none of ours.
std::optional<BestFile> best_file(const fs::path& path, const std::string& monitor) {
  try {
    const json note = json::parse(read_note(path), nullptr, /*allow_exceptions=*/false);
    if (!note.is_object() || note.value("monitor", "") != monitor) return std::nullopt;
    return BestFile{.path = path,
                    .training = note.at("training"),
                    .value = note.at("value"),
                    .step = note.at("step")};
  } catch (const json::exception&) {
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::vector<BestFile> best_files(const fs::path& folder, const std::string& monitor) {
  std::vector<BestFile> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".pt") continue;
    if (auto file = best_file(entry.path(), monitor)) files.push_back(std::move(*file));
  }
  return files;
}

// A name that no file has yet.
fs::path free_path(const fs::path& folder, std::string name) {
  std::ranges::replace(name, '/', '_');  // A metric's name may have it.
  std::error_code error;
  fs::path path = folder / (name + ".pt");
  for (int version = 1; fs::exists(path, error); ++version) {
    path = folder / concat(name, "-v", version, ".pt");
  }
  return path;
}

std::string text_of(double value) {
  std::ostringstream text;
  constexpr int kDigits = 6;
  text << std::setprecision(kDigits) << value;
  return text.str();
}

}  // namespace

void EarlyStopping::on_fit_start(TrainerState& state) {
  check_validates("EarlyStopping", state);
  state_ = at::zeros({3}, at::kDouble);
  state.accelerator.register_for_checkpointing("early_stopping " + options_.monitor,
                                               {{"best_known_waited", state_}});
}

void ModelCheckpoint::on_fit_start(TrainerState& state) {
  check_validates("ModelCheckpoint", state);
}

EarlyStopping::EarlyStopping(const EarlyStoppingOptions& options) : options_(options) {}

void EarlyStopping::on_validation_end(TrainerState& state, const Metrics& metrics) {
  const double value = metric_of("EarlyStopping", options_.monitor, metrics);
  auto* const values = state_.mutable_data_ptr<double>();
  const bool is_known = values[kKnown] > 0;
  const bool is_min = options_.mode == MonitorMode::kMin;
  const double gain = is_min ? values[kBest] - value : value - values[kBest];
  if (std::isfinite(value) && (!is_known || gain > options_.min_delta)) {
    values[kBest] = value;
    values[kKnown] = 1;
    values[kWaited] = 0;
  } else {
    ++values[kWaited];
    stop_when_due(state);
  }
}

void EarlyStopping::on_load_checkpoint(TrainerState& state) {
  stop_when_due(state);
}

void EarlyStopping::stop_when_due(TrainerState& state) const {
  const auto* const values = state_.const_data_ptr<double>();
  if (values[kWaited] < std::max(options_.patience, 1)) return;
  state.stop_reason = concat(options_.monitor, " did not improve ",
                             values[kKnown] > 0 ? concat("on ", values[kBest], " ") : std::string(),
                             "for ", static_cast<int>(values[kWaited]), " validations");
}

ModelCheckpoint::ModelCheckpoint(const ModelCheckpointOptions& options) : options_(options) {
  if (options_.save_top_k < 1) {
    throw UsageError(
        concat("ModelCheckpoint: save_top_k is ", options_.save_top_k, ", it must be at least 1"));
  }
}

void ModelCheckpoint::on_validation_end(TrainerState& state, const Metrics& metrics) {
  const double value = metric_of("ModelCheckpoint", options_.monitor, metrics);
  if (state.is_dev_run || !std::isfinite(value)) return;
  TensorDict weights;
  write_on_main(
      state.accelerator, [&] { keep(state, value, weights); },
      [&] { weights = state.accelerator.get_state_dict(state.module); });
}

void ModelCheckpoint::keep(TrainerState& state, double value, const TensorDict& weights) const {
  const fs::path folder = fs::path(state.directory) / kBestFolder;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw SystemError(concat("make ", folder), error.value(),
                      "choose a folder that this process may write");
  }
  const std::string& training = state.accelerator.training_id();
  std::vector<BestFile> files = best_files(folder, options_.monitor);
  std::erase_if(files, [&](const BestFile& file) { return file.training != training; });
  std::ranges::sort(
      files, [&](const BestFile& a, const BestFile& b) { return is_better(a.value, b.value); });
  const auto is_same = [&](const BestFile& file) {
    return file.step == state.time.batches && file.value == value;
  };
  if (std::ranges::any_of(files, is_same)) return;  // Made again after a resume.
  const auto kept = static_cast<std::size_t>(options_.save_top_k);
  if (files.size() >= kept && !is_better(value, files[kept - 1].value)) return;
  const json note = {{"training", training},
                     {"monitor", options_.monitor},
                     {"value", value},
                     {"step", state.time.batches}};
  save(free_path(folder, concat("epoch=", state.epoch, "-step=", state.time.batches, "-",
                                options_.monitor, "=", text_of(value))),
       weights, {.note = note.dump()});
  for (std::size_t i = kept - 1; i < files.size(); ++i) {
    fs::remove(files[i].path, error);
    if (!error) continue;
    log(LogLevel::kWarning, concat("cannot delete ", files[i].path, ": ", error.message()));
  }
}

std::string ModelCheckpoint::best_model_path(const std::string& directory) const {
  const std::vector<BestFile> files =
      best_files(fs::path(directory) / kBestFolder, options_.monitor);
  std::error_code error;
  const auto written_at = [&](const BestFile& file) {
    return fs::last_write_time(file.path, error);
  };
  const auto newest = std::ranges::max_element(files, {}, written_at);
  BestFile best;
  for (const BestFile& file : files) {
    if (file.training != newest->training) continue;
    if (best.path.empty() || is_better(file.value, best.value)) best = file;
  }
  return best.path.string();
}

void LearningRateMonitor::on_log(TrainerState& state, Metrics& metrics) {
  metrics.emplace_back("lr", state.learning_rate());
}

void EmaCallback::on_fit_start(TrainerState& state) {
  if (state.accelerator.options().strategy == Strategy::kFullyShard) {
    throw UsageError(
        "EmaCallback: averages of a model that is sharded are not supported; leave the callback "
        "out, or train with strategy kDdp (--strategy=ddp)");
  }
  applied_.reset();
  average_ = std::make_unique<ExponentialMovingAverage>(state.module, options_);
  state.accelerator.register_for_checkpointing("ema", *average_);
}

void EmaCallback::on_train_batch_end(TrainerState& state) {
  if (!state.step_was_skipped) average_->update();
}

void EmaCallback::on_validation_start(TrainerState&) {
  applied_ = std::make_unique<AveragedWeights>(*average_);
}

void EmaCallback::on_validation_interrupted(TrainerState&) {
  applied_.reset();
}

void EmaCallback::on_exception(TrainerState&, const std::exception&) {
  applied_.reset();
}

void EmaCallback::on_validation_end(TrainerState&, const Metrics&) {
  applied_.reset();
}

}  // namespace lockstep
