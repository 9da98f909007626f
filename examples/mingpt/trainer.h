#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/optim/adamw.h>

#include "examples/mingpt/char_dataset.h"
#include "examples/mingpt/config.h"
#include "examples/mingpt/vocabulary.h"
#include "lockstep/lockstep.h"
#include "models/gpt.h"

namespace mingpt {

/// Trains a GPT on a text, in as many processes as the group has; the counterpart of the tutorial's
/// Trainer. Rank 0 prints what happens to standard output. Snapshots are taken in epochs too: a run
/// that was killed, however often, ends with the bits of one that was not.
/// Threads: one. Collective: every rank does the same. Errors: as those of its parts.
class Trainer {
 public:
  /// Goes on from the newest snapshot where there is one.
  Trainer(const Config& config, const lockstep::ProcessGroup& group);

  void train();
  /// On rank 0 alone is enough: communicates nothing.
  std::string sample(const std::string& prompt = {});

 private:
  /// What is done.
  struct Position {
    std::int64_t epoch = 0;
    std::int64_t samples = 0;  ///< Of the epoch under way, by all ranks.
    std::int64_t step = 0;
  };

  struct Text;
  Trainer(const Config& config, const lockstep::ProcessGroup& group, const Text& text);

  void load_snapshot();
  void save_snapshot();
  /// Goes on with the epoch under way. Returns whether it is complete, or out of steps before.
  bool run_epoch();
  at::Tensor run_batch(const torch::data::Example<>& batch);
  at::Tensor loss_of(const torch::data::Example<>& batch);
  void evaluate();
  void report_step(const at::Tensor& loss);
  void print(const std::string& line) const;

  std::int64_t samples_a_step() const;
  std::int64_t steps_an_epoch() const;
  bool out_of_steps() const;

  const Config config_;
  const lockstep::ProcessGroup group_;
  const Vocabulary vocabulary_;
  CharDataset train_set_;
  std::optional<CharDataset> test_set_;  ///< Nothing where the rest of the text is too short.
  lockstep::DistributedSampler sampler_;
  models::Gpt gpt_;
  lockstep::DistributedDataParallel<models::GptImpl> model_;
  torch::optim::AdamW optimizer_;
  lockstep::GradScaler scaler_;
  lockstep::SnapshotDirectory snapshots_;
  Position position_;
  std::int64_t total_steps_ = 0;
  std::int64_t saved_step_ = -1;
  std::int64_t evaluated_step_ = -1;
  std::chrono::steady_clock::time_point reported_at_;
  std::int64_t reported_step_ = 0;
};

}  // namespace mingpt
