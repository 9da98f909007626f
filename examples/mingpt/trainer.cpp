#include "examples/mingpt/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "examples/mingpt/model_file.h"
#include "examples/mingpt/sample.h"
#include "examples/mingpt/text.h"
#include "lockstep/base/internal/concat.h"

namespace mingpt {
namespace {

using lockstep::concat;
using Clock = std::chrono::steady_clock;

constexpr const char* kSamples = "mingpt.samples";

models::GptConfig gpt_config(const Config& config, const Vocabulary& vocabulary) {
  models::GptConfig gpt = config.gpt;
  gpt.vocab_size = vocabulary.size();
  gpt.block_size = config.data.block_size;
  return gpt;
}

models::Gpt make_gpt(const models::GptConfig& config, std::uint64_t seed, at::Device device) {
  at::manual_seed(seed);
  models::Gpt gpt(config);
  gpt->to(device);
  return gpt;
}

std::optional<CharDataset> test_pieces(const at::Tensor& tokens, std::int64_t block_size) {
  if (tokens.numel() <= block_size) return std::nullopt;
  return CharDataset(tokens, {.block_size = block_size, .stride = block_size});
}

template <class... Values>
std::string format(const char* format, Values... values) {
  char text[160];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

}  // namespace

/// What comes of the files: the same on every rank.
struct Trainer::Text {
  static Text read(const DataConfig& config) {
    std::u32string characters = read_text(config.path);
    characters.resize(
        static_cast<std::size_t>(static_cast<double>(characters.size()) * config.truncate));
    Vocabulary vocabulary(characters);
    TextParts parts = split_text(vocabulary.encode(characters), config.train_split);
    return {std::move(vocabulary), std::move(parts)};
  }

  Vocabulary vocabulary;
  TextParts parts;
};

Trainer::Trainer(const Config& config, const lockstep::ProcessGroup& group)
    : Trainer(config, group, Text::read(config.data)) {}

Trainer::Trainer(const Config& config, const lockstep::ProcessGroup& group, const Text& text)
    : config_(config),
      group_(group),
      vocabulary_(text.vocabulary),
      train_set_(text.parts.train, {.block_size = config.data.block_size}),
      test_set_(test_pieces(text.parts.test, config.data.block_size)),
      sampler_(*train_set_.size(), {.process_group = group, .seed = config.trainer.seed}),
      gpt_(make_gpt(gpt_config(config, vocabulary_), config.trainer.seed, group.device())),
      // The only buffers are the masks, which never change.
      model_(gpt_, {.process_group = group,
                    .forward_sync_buffers = false,
                    .gradient_norm = config.trainer.grad_norm_clip > 0}),
      optimizer_(make_optimizer(*gpt_, config.optimizer)),
      scaler_({.enabled = config.trainer.precision == Precision::kFloat16}),
      snapshots_(config.trainer.snapshot_path, {.process_group = group}) {
  print(concat("Data has ", text.parts.train.numel() + text.parts.test.numel(), " characters, ",
               vocabulary_.size(), " unique."));
  std::int64_t parameters = 0;
  for (const at::Tensor& parameter : gpt_->parameters()) parameters += parameter.numel();
  print(concat("number of parameters: ", format("%.2fM", static_cast<double>(parameters) / 1e6)));
  // From here on ranks draw different numbers: the dropout of their different pieces.
  at::manual_seed(config.trainer.seed + static_cast<std::uint64_t>(group.rank()));
  load_snapshot();
}

void Trainer::load_snapshot() {
  if (const auto resumed = snapshots_.load_latest(*gpt_, optimizer_)) {
    const std::string source = resumed->path.string();
    check_same_model(resumed->extra, gpt_->config(), vocabulary_, source);
    scaler_.load_state_dict(resumed->extra);
    position_ = {.epoch = resumed->epoch,
                 .samples = entry_of(resumed->extra, kSamples, source).item<std::int64_t>(),
                 .step = resumed->step};
    saved_step_ = position_.step;
    print(concat("Resuming training from snapshot ", source, " at Epoch ", position_.epoch + 1,
                 " | Step ", position_.step));
  } else {
    print("Snapshot not found. Training model from scratch");
  }
  const auto steps_done = (position_.samples + samples_a_step() - 1) / samples_a_step();
  total_steps_ = position_.step - steps_done +
                 (config_.trainer.max_epochs - position_.epoch) * steps_an_epoch();
  if (config_.trainer.max_steps > 0) {
    total_steps_ = std::min(total_steps_, config_.trainer.max_steps);
  }
}

void Trainer::save_snapshot() {
  if (saved_step_ == position_.step) return;
  lockstep::TensorDict extra = model_description(gpt_->config(), vocabulary_);
  extra.emplace_back(kSamples, at::tensor(position_.samples, at::kLong));
  for (auto& entry : scaler_.state_dict()) extra.push_back(std::move(entry));
  snapshots_.save(*gpt_, optimizer_,
                  {.epoch = position_.epoch, .step = position_.step, .extra = std::move(extra)});
  saved_step_ = position_.step;
  print(concat("Snapshot saved at step ", position_.step));
}

void Trainer::train() {
  reported_at_ = Clock::now();
  reported_step_ = position_.step;
  while (position_.epoch < config_.trainer.max_epochs) {
    const bool complete = run_epoch();
    if (!complete) break;
    position_ = {.epoch = position_.epoch + 1, .step = position_.step};
    if (position_.epoch % config_.trainer.save_every == 0) save_snapshot();
    evaluate();
  }
  save_snapshot();
  evaluate();
}

bool Trainer::run_epoch() {
  const TrainerConfig& trainer = config_.trainer;
  sampler_.set_epoch(static_cast<std::uint64_t>(position_.epoch));
  sampler_.reset();
  // What a killed run has done of the epoch, whatever its number of ranks.
  const auto skipped = static_cast<std::size_t>(position_.samples / group_.world_size());
  if (skipped > 0) sampler_.next(skipped);
  gpt_->train();
  while (!out_of_steps()) {
    const auto indices = sampler_.next(static_cast<std::size_t>(trainer.batch_size));
    if (!indices) return true;
    const at::Tensor loss = run_batch(train_set_.get_batch(*indices));
    ++position_.step;
    position_.samples += samples_a_step();
    if (position_.step % trainer.log_every == 0 || out_of_steps()) report_step(loss);
    if (trainer.save_every_steps > 0 && position_.step % trainer.save_every_steps == 0) {
      save_snapshot();
    }
  }
  return false;
}

at::Tensor Trainer::run_batch(const torch::data::Example<>& batch) {
  set_learning_rate(optimizer_, learning_rate(config_.optimizer, position_.step, total_steps_));
  optimizer_.zero_grad();
  const at::Tensor loss = loss_of(batch);
  scaler_.scale(loss).backward();  // leaves the gradients averaged over the ranks
  scaler_.unscale_(optimizer_);
  const double most = config_.trainer.grad_norm_clip;
  if (most > 0) {
    lockstep::clip_grads_with_norm_(gpt_->parameters(), most,
                                    model_.gradient_norm() / scaler_.get_scale());
  }
  scaler_.step(optimizer_);
  scaler_.update();
  return loss.detach();
}

at::Tensor Trainer::loss_of(const torch::data::Example<>& batch) {
  const Precision precision = config_.trainer.precision;
  const lockstep::Autocast autocast(
      {.device_type = group_.device().type(),
       .dtype = precision == Precision::kFloat16 ? at::kHalf : at::kBFloat16,
       .enabled = precision != Precision::kFloat32});
  const at::Tensor idx = batch.data.to(group_.device());
  const at::Tensor targets = batch.target.to(group_.device());
  // Evaluation calls the module itself: ranks may have different numbers of batches there.
  return std::get<1>(gpt_->is_training() ? model_(idx, targets) : gpt_->forward(idx, targets));
}

void Trainer::evaluate() {
  if (!test_set_ || evaluated_step_ == position_.step) return;
  evaluated_step_ = position_.step;
  const at::NoGradGuard no_grad;
  lockstep::DistributedSampler sampler(
      *test_set_->size(), {.process_group = group_, .shuffle = false, .padding = false});
  sampler.reset();
  gpt_->eval();
  at::Tensor sums = at::zeros({2}, at::TensorOptions(at::kDouble).device(group_.device()));
  while (const auto indices = sampler.next(static_cast<std::size_t>(config_.trainer.batch_size))) {
    const auto pieces = static_cast<double>(indices->size());
    sums[0] += loss_of(test_set_->get_batch(*indices)) * pieces;
    sums[1] += pieces;
  }
  gpt_->train();
  group_.all_reduce(sums);
  print(concat("Step ", position_.step, " | Eval Loss ",
               format("%.5f", (sums[0] / sums[1]).item<double>())));
  reported_at_ = Clock::now();
  reported_step_ = position_.step;
}

void Trainer::report_step(const at::Tensor& loss) {
  at::Tensor mean = loss.to(at::kFloat).clone();
  group_.all_reduce(mean, {.op = lockstep::ReduceOp::kAvg});
  const auto now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - reported_at_).count();
  print(concat(
      "Epoch ", position_.epoch + 1, " | Iter ", position_.samples / samples_a_step(),
      " | Train Loss ", format("%.5f", mean.item<double>()),
      format(" | %.1f steps/s", static_cast<double>(position_.step - reported_step_) / seconds)));
  reported_at_ = now;
  reported_step_ = position_.step;
}

std::string Trainer::sample(const std::string& prompt) {
  return sample_text(*gpt_, vocabulary_, {.prompt = prompt, .seed = config_.trainer.seed});
}

void Trainer::print(const std::string& line) const {
  if (group_.rank() == 0) std::cout << "[RANK0] " << line << std::endl;
}

std::int64_t Trainer::samples_a_step() const {
  return config_.trainer.batch_size * group_.world_size();
}

std::int64_t Trainer::steps_an_epoch() const {
  const auto samples = static_cast<std::int64_t>(sampler_.size());
  return (samples + config_.trainer.batch_size - 1) / config_.trainer.batch_size;
}

bool Trainer::out_of_steps() const {
  return config_.trainer.max_steps > 0 && position_.step >= config_.trainer.max_steps;
}

}  // namespace mingpt
