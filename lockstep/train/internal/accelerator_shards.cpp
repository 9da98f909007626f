#include "lockstep/train/internal/accelerator_shards.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <unordered_set>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/version.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/ddp/exchange/gradient_view.h"
#include "lockstep/nn/internal/batch_norm_interception.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/nn/tensor_parallel.h"
#include "lockstep/recovery/internal/step_seed.h"
#include "lockstep/snapshot/internal/checksum.h"

namespace lockstep::inline internal {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw UsageError(concat("Accelerator: logical_shards with ", what));
}

template <class BatchNorm>
bool is_synchronized(const torch::nn::Module& module) {
  const auto* const norm = module.as<BatchNorm>();
  return norm != nullptr && is_intercepted(norm->weight, norm->running_mean);
}

// A rank computes its shards one after the other, and another rank as many or not: layers that
// communicate in forward would not meet.
void check_module(const torch::nn::Module& root) {
  for (const auto& module : root.modules()) {
    if (module->as<SyncBatchNormImpl>() != nullptr ||
        is_synchronized<torch::nn::BatchNorm1dImpl>(*module) ||
        is_synchronized<torch::nn::BatchNorm2dImpl>(*module) ||
        is_synchronized<torch::nn::BatchNorm3dImpl>(*module)) {
      refuse(
          "a SyncBatchNorm is not supported, as ranks compute their shards one after the other; "
          "use BatchNorm, whose statistics are those of each shard");
    }
    if (module->as<ColumnParallelLinearImpl>() != nullptr ||
        module->as<RowParallelLinearImpl>() != nullptr ||
        module->as<VocabParallelEmbeddingImpl>() != nullptr) {
      refuse("tensor-parallel layers is not supported; leave one out");
    }
  }
}

constexpr int kBitsOfBatches = 40;
constexpr const char* kLossName = "logical_shards";
// Integer buffers that change, as BatchNorm's count of batches, are small.
constexpr std::int64_t kMostIntegers = 64;

// What is summed as doubles, behind each other: for each parameter how many shards have a gradient,
// for each buffer how many shards have changed it, and these.
enum Count { kLoss, kWeight, kWeighted, kShards, kCounts };

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
  if (options.one_copy_per_machine) refuse("one_copy_per_machine is not supported; leave one out");
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

// LibTorch sets it, and does not tell.
bool flushes_denormals() {
  const volatile float denormal = std::numeric_limits<float>::denorm_min();
  const volatile float product = denormal * 1.0F;
  return product == 0;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// Those of `text` that `other` does not have.
std::string words_missing_in(const std::string& other, const std::string& text) {
  const std::vector<std::string> there = words_of(other);
  std::string missing;
  for (const std::string& word : words_of(text)) {
    if (std::ranges::find(there, word) != there.end()) continue;
    missing += concat(missing.empty() ? "" : " ", word);
  }
  return missing.empty() ? "nothing" : missing;
}

// Where no value is a number, not even before, nothing has changed.
bool are_same_values(const at::Tensor& left, const at::Tensor& right) {
  if (at::equal(left, right)) return true;
  return (left.eq(right) | (at::isnan(left) & at::isnan(right))).all().item<bool>();
}

bool is_number(const at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) || at::isComplexType(tensor.scalar_type());
}

at::Tensor real_view(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
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
       .state_dict = [loss = loss_] { return TensorDict{{"loss", loss}}; },
       .load_state_dict =
           [loss = loss_](const TensorDict& values) { loss.copy_(values.front().second); },
       .is_optional = true});
  at::set_num_threads(state.options().compute_threads);
}

AcceleratorShards::~AcceleratorShards() {
  at::set_num_threads(threads_before_);
}

std::string AcceleratorShards::kernels() const {
  const auto& context = at::globalContext();
  return concat("logical_shards=", shards_, " compute_threads=", at::get_num_threads(),
                " LibTorch=", TORCH_VERSION, " kernels=", at::get_cpu_capability(),
                " mkldnn=", context.userEnabledMkldnn(),
                " deterministic=", context.deterministicAlgorithms(),
                " precision=", static_cast<int>(state_.options().precision),
                " float32_matmul_precision=", static_cast<int>(context.float32MatmulPrecision()),
                " flush_denormal=", flushes_denormals());
}

void AcceleratorShards::compare_kernels(const std::string& saved, const std::string& source) const {
  const std::string own = kernels();
  if (saved == own || state_.process_index() != 0) return;
  log(LogLevel::kWarning,
      concat(source, ": logical_shards: kernels may round otherwise than in the training that was "
             "saved: there ", words_missing_in(own, saved), ", here ", words_missing_in(saved, own),
             "; the training continues, its bits may be other ones"));
}

// A survivor does not end for a rank that joins.
void AcceleratorShards::check_kernels() {
  constexpr const char* kOperation = "logical_shards: what decides how kernels round";
  const ProcessGroup& group = state_.group();
  const std::string own = kernels();
  const auto hash = static_cast<std::int64_t>(hash_bytes(own.data(), own.size()));
  const auto rows = gather_rows(group, {has_met_ ? 1 : 0, hash});
  const auto first = std::ranges::find_if(rows, [](const auto& row) { return row[0] != 0; });
  if (first == rows.end()) {
    check_same_text(group, kOperation, own);
  } else if (std::ranges::any_of(rows, [&](const auto& row) { return row[1] != (*first)[1]; })) {
    const auto rank = static_cast<int>(first - rows.begin());
    const std::string theirs = broadcast_text(group, own, rank);
    if (own != theirs) {
      throw UsageError(concat(kOperation, ": rank ", rank, ", which trains: ",
                              words_missing_in(own, theirs), ", this rank (", group.rank(),
                              "), which joins: ", words_missing_in(theirs, own),
                              "; start it with the same settings and instructions"));
    }
  }
  has_met_ = true;
}

void AcceleratorShards::set_group() {
  sum_.reset();
  give_up_step();
  const ProcessGroup& group = state_.group();
  if (!group.device().is_cpu()) {
    refuse(concat("device ", group.device().str(), " is not supported; train on the CPU"));
  }
  check_kernels();
  if (group.world_size() <= shards_ || group.rank() != 0) return;
  log(LogLevel::kWarning, concat("logical_shards=", shards_, " on ", group.world_size(), " ranks: ",
                                 group.world_size() - shards_, " of them have no work"));
}

void AcceleratorShards::give_up_step() {
  if (sum_) sum_->clear();
  has_shard_ = is_open_ = has_sum_ = false;
}

void AcceleratorShards::end_left_step() {
  if (!is_open_ || is_within_step()) return;
  const at::NoGradGuard no_grad;
  for (const Buffer& buffer : buffers_) buffer.tensor.copy_(buffer.before);
  give_up_step();
}

// Once: what is prepared stays.
void AcceleratorShards::find_tensors() {
  if (std::exchange(has_tensors_, true)) return;
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto is_new = [&](const at::Tensor& tensor) {
    return tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second;
  };
  for (const auto& replica : state_.replicas) {
    check_module(*replica->module());
    for (const at::Tensor& parameter : replica->module()->parameters()) {
      if (!parameter.requires_grad() || !is_new(parameter)) continue;
      parameters_.push_back(parameter);
      places_.push_back(
          add(c10::toRealValueType(parameter.scalar_type()), flat_elements(parameter)));
    }
    for (const auto& item : replica->module()->named_buffers()) {
      const at::Tensor& buffer = item.value();
      if (!is_new(buffer)) continue;
      Buffer one{.tensor = buffer, .before = at::empty_like(buffer), .place = {}, .name = item.key()};
      if (is_number(buffer)) {
        one.place = add(c10::toRealValueType(buffer.scalar_type()), real_view(buffer).numel());
      } else if (buffer.numel() <= kMostIntegers) {
        one.place = add(at::kDouble, buffer.numel());
      }
      buffers_.push_back(std::move(one));
    }
  }
  counts_ = add(at::kDouble,
                number_of_counts());
}

std::int64_t AcceleratorShards::number_of_counts() const {
  return static_cast<std::int64_t>(kCounts + parameters_.size() + buffers_.size());
}

AcceleratorShards::Place AcceleratorShards::add(at::ScalarType dtype, std::int64_t numel) {
  auto flat = std::ranges::find(layout_, dtype, &ShardSum::Layout::value_type::first);
  if (flat == layout_.end()) flat = layout_.insert(layout_.end(), {dtype, 0});
  const Place place{.flat = static_cast<std::size_t>(flat - layout_.begin()), .from = flat->second};
  flat->second += numel;
  return place;
}

at::Tensor AcceleratorShards::part(const std::vector<at::Tensor>& flats, const Place& place,
                                   const at::Tensor& of) const {
  const at::Tensor real = real_view(of);
  return flats[place.flat].narrow(0, place.from, real.numel()).view(real.sizes());
}

const LoaderPosition& AcceleratorShards::position() const {
  const bool is_at_batch = !state_.loaders.empty() && state_.loaders.front()->is_in_pass() &&
                           state_.loaders.front()->has_batch();
  if (is_at_batch) return *state_.loaders.front();
  throw UsageError(
      "Accelerator::backward: with logical_shards a loss must be that of a batch of the data "
      "loader that was prepared first; call it in the loop over that");
}

void AcceleratorShards::begin_shard(const ShardPlace& place) {
  place_ = place;
  seed_step(state_.options().seed, place.shard, (place.epoch << kBitsOfBatches) + place.batch,
            state_.group().device());
  const bool ends_epoch = place.shard == shards_ && state_.loaders.front()->batches_behind_cursor() == 0;
  const at::NoGradGuard no_grad;
  const bool goes_on = state_.loaders.front()->is_within_step();
  // A step that is still open was left.
  if (is_open_) {
    for (const Buffer& buffer : buffers_) buffer.tensor.copy_(buffer.before);
  }
  if (!goes_on) give_up_step();
  if (ends_epoch) return;
  find_tensors();
  if (!goes_on) {
    for (Buffer& buffer : buffers_) buffer.before.copy_(buffer.tensor);
  }
  has_shard_ = true;
  is_open_ = is_open_ || !goes_on;
}

bool AcceleratorShards::is_within_step() const {
  const auto& loaders = state_.loaders;
  if (loaders.empty() || !loaders.front()->is_in_pass()) return false;
  if (!loaders.front()->has_batch()) return false;
  return !ends_step() || has_shard_;
}

bool AcceleratorShards::ends_step() const {
  const auto& loaders = state_.loaders;
  return loaders.empty() || !loaders.front()->has_batch() || loaders.front()->is_last_shard();
}

// A gradient of an earlier step would count once for each rank.
void AcceleratorShards::drop_old_gradients() const {
  for (const at::Tensor& parameter : parameters_) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse() || at::count_nonzero(gradient).item<std::int64_t>() > 0) {
      throw UsageError(
          "Accelerator::backward: with logical_shards the gradients of an earlier step must be "
          "given up first; call zero_grad() of the optimizer before backward()");
    }
    gradient.reset();
  }
}

void AcceleratorShards::backward(const at::Tensor& loss, std::optional<double> weight) {
  const LoaderPosition& at = position();
  if (!has_shard_) {
    throw UsageError(
        "Accelerator::backward: with logical_shards each batch has one loss; add up its losses and "
        "call it once");
  }
  if (weight && state_.scaler().is_enabled()) {
    refuse("a weight of backward() and precision float16 is not supported; use bfloat16");
  }
  if (!sum_) sum_.emplace(state_.group(), shards_, layout_);
  drop_old_gradients();
  const double part_of_step =
      static_cast<double>(at.samples()) / static_cast<double>(at.batch_samples());
  const bool counts = at.samples() > 0;
  if (counts) {
    at::Tensor total = loss * (weight ? *weight : part_of_step);
    if (state_.scaler().is_enabled()) total = state_.scaler_.scale(total);
    total.backward();
  }
  has_shard_ = false;
  const at::NoGradGuard no_grad;
  if (at.shard() < shards_) {
    push(counts ? loss.item<double>() : 0, part_of_step, counts ? weight : std::optional(0.0));
  }
  if (at.is_last_shard()) finish();
}

void AcceleratorShards::push(double loss, double part_of_step, std::optional<double> weight) {
  const std::vector<at::Tensor>& flats = sum_->next_value();
  const at::Tensor counts =
      flats[counts_.flat].narrow(0, counts_.from, number_of_counts());
  counts.zero_();
  auto* const count = counts.mutable_data_ptr<double>();
  count[kLoss] = loss * part_of_step;
  if (part_of_step > 0) {
    count[kShards] = 1;
    if (weight) count[kWeighted] = 1;
    count[kWeight] = weight.value_or(0);
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].mutable_grad();
    const Place& place = places_[i];
    const at::Tensor target = gradient_view(flats[place.flat], place.from, parameters_[i]);
    if (!gradient.defined()) {
      target.zero_();
      continue;
    }
    if (gradient.is_sparse()) {
      refuse("sparse gradients is not supported; make the embedding's gradients dense");
    }
    target.copy_(gradient);
    gradient.reset();
    count[static_cast<std::size_t>(kCounts) + i] = 1;
  }
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    push_buffer(buffers_[i], part_of_step,
                counts[static_cast<std::int64_t>(kCounts + parameters_.size() + i)], flats);
  }
  sum_->push(place_.shard);
}

void AcceleratorShards::push_buffer(const Buffer& buffer, double part_of_step,
                                    const at::Tensor& changed,
                                    const std::vector<at::Tensor>& flats) const {
  const bool has_changed = part_of_step > 0 && !are_same_values(buffer.tensor, buffer.before);
  if (!buffer.place) {
    if (!has_changed) return;
    refuse(concat("the buffer '", buffer.name, "', which changes and has ", buffer.tensor.numel(),
                  " integers, is not supported; ", kMostIntegers, " at most"));
  }
  // The mean of the changes from infinity is none.
  if (has_changed && !at::isfinite(buffer.before).all().item<bool>()) {
    refuse(concat("the buffer '", buffer.name,
                  "', which changes and is not finite, is not supported; begin with finite values"));
  }
  const at::Tensor target = part(flats, *buffer.place, buffer.tensor);
  if (has_changed) changed.fill_(1);
  const bool has_own = is_number(buffer.tensor) || place_.shard == 0;
  if (!has_changed || !has_own) {
    target.zero_();
  } else if (is_number(buffer.tensor)) {
    at::Tensor change = at::sub(real_view(buffer.tensor), real_view(buffer.before));
    target.copy_(change.mul_(part_of_step));
  } else {
    target.copy_(buffer.tensor.to(at::kLong) - buffer.before.to(at::kLong));
  }
}

void AcceleratorShards::finish() {
  const std::vector<at::Tensor>& sums = sum_->finish();
  const at::Tensor counts = sums[counts_.flat].narrow(
      0, counts_.from, number_of_counts());
  const double* const count = counts.const_data_ptr<double>();
  if (count[kWeighted] != 0 && count[kWeighted] != count[kShards]) {
    throw UsageError(
        "Accelerator::backward: some shards of the step have given a weight, and others none; give "
        "one with each loss or with none");
  }
  loss_.fill_(count[kLoss]);
  const bool divides = count[kWeighted] != 0 && count[kWeight] > 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (count[static_cast<std::size_t>(kCounts) + i] == 0) continue;
    const Place& place = places_[i];
    at::Tensor gradient = gradient_view(sums[place.flat], place.from, parameters_[i]);
    if (divides) gradient.div_(count[kWeight]);
    if (!state_.options().ddp.gradient_as_bucket_view) gradient = gradient.clone();
    parameters_[i].mutable_grad() = gradient;
  }
  take_buffers(sums, count + kCounts + parameters_.size());
  is_open_ = false;
  has_sum_ = true;
  // What is drawn before the next step is the same on all ranks.
  seed_step(state_.options().seed, shards_, (place_.epoch << kBitsOfBatches) + place_.batch,
            state_.group().device());
}

void AcceleratorShards::take_buffers(const std::vector<at::Tensor>& sums, const double* changes) {
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const Buffer& buffer = buffers_[i];
    buffer.tensor.copy_(buffer.before);
    if (changes[i] == 0) continue;
    const at::Tensor change = part(sums, *buffer.place, buffer.tensor);
    if (is_number(buffer.tensor)) {
      real_view(buffer.tensor).add_(change);
    } else if (change.any().item<bool>()) {
      buffer.tensor.copy_(buffer.before.to(at::kLong) + change.to(at::kLong));
    } else {
      refuse(concat("the buffer '", buffer.name, "', whose integers change in other shards than 0, "
                    "is not supported; change it in each shard alike"));
    }
  }
}

}  // namespace lockstep::inline internal
