#include "lockstep/train/internal/accelerator_shards.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <torch/nn/module.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/base/internal/text.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/ddp/internal/weighted_loss.h"
#include "lockstep/recovery/internal/step_seed.h"
#include "lockstep/snapshot/internal/checksum.h"
#include "lockstep/train/internal/kernel_fingerprint.h"

namespace lockstep::inline internal {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw UsageError(concat("Accelerator: logical_shards with ", what));
}

constexpr int kBitsOfBatches = 40;
constexpr const char* kLossName = "logical_shards";
void check_options(const AcceleratorOptions& options) {
  if (options.logical_shards < 0) {
    throw UsageError(concat("Accelerator: logical_shards is ", options.logical_shards,
                            ", it must be at least 1, or 0 for none"));
  }
  if (options.compute_threads < 1) {
    throw UsageError(concat("Accelerator: compute_threads is ", options.compute_threads,
                            ", it must be at least 1"));
  }
  if (options.gradient_accumulation_steps > 1) {
    refuse(concat("gradient_accumulation_steps=", options.gradient_accumulation_steps,
                  "; each shard is a micro-batch already: set logical_shards=",
                  options.logical_shards * options.gradient_accumulation_steps,
                  " and leave the other option out"));
  }
  const DistributedDataParallelOptions& ddp = options.ddp;
  if (ddp.comm_hook) {
    refuse(concat("comm_hook '", ddp.comm_hook->describe(), "' is not supported; leave one out"));
  }
  if (ddp.exchange_dtype) refuse("exchange_dtype is not supported; leave one out");
  if (ddp.gradient_norm) {
    refuse("ddp.gradient_norm is not supported; use what clip_grad_norm_() returns");
  }
  if (ddp.measure_exchange) refuse("measure_exchange is not supported; leave one out");
  if (ddp.check_replicas_every > 0) {
    refuse("ddp.check_replicas_every is not supported; use the accelerator's option");
  }
  if (!ddp.parameters_and_buffers_to_ignore.empty()) {
    refuse("parameters_and_buffers_to_ignore is not supported; leave one out");
  }
}

}  // namespace

AcceleratorShards::AcceleratorShards(AcceleratorState& state)
    : state_(state),
      shards_(state.options().logical_shards),
      threads_before_(at::get_num_threads()),
      loss_(at::full({}, std::numeric_limits<double>::quiet_NaN(), at::kDouble)) {
  check_options(state.options());
  state_.registered.push_back(
      {.name = kLossName,
       .state_dict =
           [loss = loss_] {
             return TensorDict{{"loss", loss}};
           },
       .load_state_dict =
           [loss = loss_](const TensorDict& values) { loss.copy_(values.front().second); },
       .is_optional = true});
  at::set_num_threads(state.options().compute_threads);
}

AcceleratorShards::~AcceleratorShards() {
  at::set_num_threads(threads_before_);
}

std::string AcceleratorShards::kernels() const {
  return concat("logical_shards=", shards_,
                " precision=", static_cast<int>(state_.options().precision), " ",
                kernel_fingerprint());
}

void AcceleratorShards::compare_kernels(const std::string& saved, const std::string& source) const {
  const std::string own = kernels();
  if (saved == own || state_.process_index() != 0) return;
  log(LogLevel::kWarning,
      concat(source,
             ": logical_shards: kernels may round differently from the saved run: saved with ",
             words_missing_in(own, saved), ", now ", words_missing_in(saved, own),
             "; the training continues, and its bits may differ"));
}

// A survivor does not end for a rank that joins.
void AcceleratorShards::check_kernels() {
  constexpr const char* kOperation = "logical_shards: the fingerprint of kernels";
  const ProcessGroup& group = state_.process_group();
  const std::string own = kernels();
  const auto hash = static_cast<std::int64_t>(hash_bytes(own.data(), own.size()));
  const bool warns = state_.options().allow_kernel_differences;
  const auto rows = gather_rows(group, {has_met_ ? 1 : 0, hash, warns ? 1 : 0});
  const auto met = std::ranges::find_if(rows, [](const auto& row) { return row[0] != 0; });
  const bool is_start = met == rows.end();
  const auto& reference = is_start ? rows.front() : *met;
  const auto is_other = [&](const auto& row) { return row[1] != reference[1]; };
  if (std::ranges::any_of(rows, is_other)) {
    const auto rank = is_start ? 0 : static_cast<int>(met - rows.begin());
    const bool is_allowed = reference[2] != 0;
    constexpr const char* kCure =
        "start it with the same settings and instructions, or set allow_kernel_differences";
    if (is_start && !is_allowed) check_same_text(group, kOperation, own, kCure);
    const std::string theirs = broadcast_text(group, own, rank);
    if (own != theirs) {
      const std::string difference = concat(
          kOperation, ": rank ", rank,
          is_start ? ": " : ", which trains: ", words_missing_in(own, theirs), ", this rank (",
          group.rank(), is_start ? "): " : "), which joins: ", words_missing_in(theirs, own));
      if (!is_allowed) {
        throw UsageError(concat(difference, "; ", kCure));
      }
      log(LogLevel::kWarning,
          concat(difference,
                 "; the training continues, its bits may depend on which rank computes "
                 "a shard"));
    }
  }
  has_met_ = true;
}

void AcceleratorShards::set_group() {
  discard_step();
  steps_.reset();
  const ProcessGroup& group = state_.process_group();
  LogicalShards::check_device(group);
  check_kernels();
  if (group.world_size() <= shards_ || group.rank() != 0) return;
  log(LogLevel::kWarning, concat("logical_shards=", shards_, " on ", group.world_size(), " ranks: ",
                                 group.world_size() - shards_, " of them have no work"));
}

void AcceleratorShards::discard_step() {
  if (steps_) steps_->discard_step();
  has_sum_ = false;
}

void AcceleratorShards::end_left_step() {
  if (!steps_ || !steps_->is_within_step() || is_within_step()) return;
  steps_->restore_buffers();
  discard_step();
}

// Parameters whose gradients stay each rank's own would differ, and nobody would see it.
void AcceleratorShards::check_gradients(const char* operation,
                                        const std::vector<at::Tensor>& parameters) const {
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.grad().defined() || steps_->sums(parameter)) continue;
    throw UsageError(concat(
        operation, ": with logical_shards a parameter of sizes ", parameter.sizes(),
        " has a gradient that is not summed over the shards; give its module to prepare() before "
        "the step begins, with all parameters that are to be trained"));
  }
}

LogicalShards& AcceleratorShards::steps() {
  if (steps_) return *steps_;
  models_ = state_.replicas.size();
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  for (const auto& replica : state_.replicas) modules.push_back(replica->module());
  return steps_.emplace(
      modules, LogicalShardsOptions{
                   .shards = shards_,
                   .seed = state_.options().seed,
                   .process_group = state_.process_group(),
                   .gradient_as_bucket_view = state_.options().ddp.gradient_as_bucket_view});
}

const LoaderPosition& AcceleratorShards::position() const {
  const bool is_at_batch = !state_.loaders.empty() && state_.loaders.front()->is_in_pass() &&
                           state_.loaders.front()->has_batch();
  if (is_at_batch) return *state_.loaders.front();
  throw UsageError(
      "Accelerator::backward: with logical_shards a loss must be that of a batch of the data "
      "loader that was prepared first; call it in the loop over that");
}

// Else another rank's sum would wait for this one's, or take that of a later step.
void AcceleratorShards::check_backward() const {
  if (state_.has_lost_group() || !steps_ || !steps_->is_within_shard()) return;
  if (!state_.loaders.front()->has_batch()) return;  // The loop was left.
  throw UsageError(
      "Accelerator: with logical_shards a batch had no backward(); call Accelerator::backward in "
      "place of loss.backward(), once for each batch; to leave out steps whose loss is not finite, "
      "set non_finite");
}

void AcceleratorShards::begin_shard(const ShardPlace& place) {
  // The step is void already; this rank may have been in the middle of a shard.
  if (state_.has_lost_group()) return;
  check_backward();
  place_ = place;
  const LoaderPosition& loader = *state_.loaders.front();
  if (!loader.is_within_step()) {
    if (steps_) steps_->restore_buffers();
    discard_step();
    if (models_ != state_.replicas.size()) steps_.reset();
    if (place.shard == shards_ && loader.batches_behind_cursor() == 0) {  // An epoch's end.
      return seed_step(state_.options().seed, shards_, step_of_place(),
                       state_.process_group().device());
    }
  }
  steps().begin_shard(step_of_place(), place.shard);
}

std::int64_t AcceleratorShards::step_of_place() const {
  return (place_.epoch << kBitsOfBatches) + place_.batch;
}

bool AcceleratorShards::is_within_step() const {
  const auto& loaders = state_.loaders;
  if (loaders.empty() || !loaders.front()->is_in_pass()) return false;
  if (!loaders.front()->has_batch()) return false;
  return !ends_step() || (steps_ && steps_->is_within_shard());
}

bool AcceleratorShards::ends_step() const {
  const auto& loaders = state_.loaders;
  return loaders.empty() || !loaders.front()->has_batch() || loaders.front()->is_last_shard();
}

void AcceleratorShards::backward(const at::Tensor& loss, std::optional<double> weight) {
  const LoaderPosition& at = position();
  if (!steps_ || !steps_->is_within_shard()) {
    throw UsageError(
        "Accelerator::backward: with logical_shards each batch has one loss; add up its losses and "
        "call it once");
  }
  if (weight && state_.scaler().is_enabled()) {
    refuse("a weight of backward() and precision float16 is not supported; use bfloat16");
  }
  const ShardWeight counted{.fraction_of_step = static_cast<double>(at.samples()) /
                                                static_cast<double>(at.batch_samples()),
                            .weight = at.samples() > 0 ? weight : std::optional(0.0)};
  if (at.samples() > 0) {
    check_weighted_loss("Accelerator::backward", state_.process_group(), loss, weight.value_or(1));
  }
  LogicalShards& steps = this->steps();
  steps.begin_backward();
  at::Tensor total = loss * counted.weight.value_or(counted.fraction_of_step);
  // A rank without samples unscales the sum, too.
  if (state_.scaler().is_enabled()) total = state_.scaler_.scale(total);
  if (at.samples() > 0 || steps.needs_every_backward()) total.backward();
  steps.take_gradients(at.samples() > 0 ? loss.item<double>() : 0, counted);
  if (!at.is_last_shard()) return;
  steps.end_step(step_of_place());
  loss_.fill_(steps.loss());
  has_sum_ = true;
}

}  // namespace lockstep::inline internal
