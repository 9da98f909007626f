#include "lockstep/train/logical_shards.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <unordered_set>
#include <utility>

#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/ddp/exchange/gradient_memory.h"
#include "lockstep/ddp/exchange/gradient_view.h"
#include "lockstep/ddp/exchange/shard_sum.h"
#include "lockstep/nn/internal/batch_norm_interception.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/nn/tensor_parallel.h"
#include "lockstep/one_copy/internal/model_copy.h"
#include "lockstep/recovery/internal/step_seed.h"
#include "lockstep/snapshot/internal/checksum.h"
#include "lockstep/train/internal/shard_target.h"

namespace lockstep {
namespace {

[[noreturn]] void refuse_with_shards(const std::string& what) {
  throw UsageError(concat("logical_shards with ", what));
}

template <class BatchNorm>
bool is_synchronized(const torch::nn::Module& module) {
  const auto* const norm = module.as<BatchNorm>();
  return norm != nullptr && is_intercepted(norm->weight, norm->running_mean);
}

bool has_sync_batch_norm(const torch::nn::Module& root) {
  return std::ranges::any_of(root.modules(), [](const auto& module) {
    return module->template as<SyncBatchNormImpl>() != nullptr ||
           is_synchronized<torch::nn::BatchNorm1dImpl>(*module) ||
           is_synchronized<torch::nn::BatchNorm2dImpl>(*module) ||
           is_synchronized<torch::nn::BatchNorm3dImpl>(*module);
  });
}

// Layers that communicate in forward meet only where all shards of a step run at once.
void check_module(const torch::nn::Module& root, int shards, int ranks) {
  if (shards != ranks && has_sync_batch_norm(root)) {
    refuse_with_shards(concat(
        "a SyncBatchNorm needs as many ranks as shards, since all shards of a step must run at "
        "once, and there are ",
        ranks, " ranks for ", shards,
        " shards; use BatchNorm, whose statistics are those of each shard"));
  }
  for (const auto& module : root.modules()) {
    if (module->as<ColumnParallelLinearImpl>() != nullptr ||
        module->as<RowParallelLinearImpl>() != nullptr ||
        module->as<VocabParallelEmbeddingImpl>() != nullptr) {
      refuse_with_shards("tensor-parallel layers is not supported; leave one out");
    }
  }
}

// Gradients of so many bytes are exchanged where autograd has written them.
constexpr std::size_t kLargeBytes = std::size_t{256} << 10U;
// Integer buffers that change, as BatchNorm's count of batches, are small.
constexpr std::int64_t kMostIntegers = 64;

// What is summed as doubles, behind each other: for each parameter how many shards have a gradient,
// for each buffer how many shards have changed it, and these.
enum Count { kLoss, kWeight, kWeighted, kShards, kStep, kCounts };

// Of steps that differ, numbers whose sum over few shards is exact. A hash, so that those of the
// steps around one do not make up for each other.
double mark_of(std::int64_t step) {
  constexpr unsigned kBits = 31;
  return static_cast<double>(hash_bytes(&step, sizeof step) >> (64 - kBits));
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

class LogicalShards::Impl {
 public:
  Impl(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
       const LogicalShardsOptions& options);

  const ShardBlock& own() const { return own_; }
  double loss() const { return loss_; }
  bool sums(const at::Tensor& parameter) const {
    return summed_.contains(parameter.unsafeGetTensorImpl());
  }
  bool is_within_step() const { return is_open_; }
  bool is_within_shard() const { return has_begun_; }
  bool needs_every_backward() const { return has_sync_batch_norm_; }

  void begin_shard(std::int64_t step, int shard);
  void begin_backward();
  void check_weight(const ShardWeight& weight) const;
  void take_gradients(double loss, const ShardWeight& weight);
  void end_step(std::int64_t step);
  void restore_buffers();
  void discard_step();

 private:
  // Where a tensor's elements lie in a flat one.
  struct Place {
    std::size_t flat = 0;
    std::int64_t from = 0;
    std::int64_t elements = 0;
    bool is_large = false;  // It has a flat tensor of its own.
  };
  struct Buffer {
    at::Tensor tensor;
    at::Tensor before;           // the step
    std::optional<Place> place;  // unset: too large for integers, must not change
    std::string name;
  };
  void find_tensors(const torch::nn::Module& module,
                    std::unordered_set<const c10::TensorImpl*>& seen);
  std::int64_t number_of_counts() const;
  Place add(at::ScalarType dtype, std::int64_t numel);
  Place add_parameter(const at::Tensor& parameter);
  at::Tensor part(const std::vector<at::Tensor>& flats, const Place& place,
                  const at::Tensor& of) const;
  void connect();
  void begin_step(std::int64_t step);
  void check_begun() const;
  void check_all_summed() const;
  void check_size(std::size_t index) const;
  void push_shard(double loss, const ShardWeight& weight);
  bool adopt_gradient(const at::Tensor& parameter, std::size_t flat);
  static bool put_gradient(const at::Tensor& parameter, const Place& place,
                           const ShardTarget& target);
  void note_sums() const;
  bool put_buffer(const Buffer& buffer, double fraction_of_step, const ShardTarget& target) const;
  static void check_exact(const Buffer& buffer, const at::Tensor& change);
  void take_buffers(const std::vector<at::Tensor>& sums, const double* changes);

  const std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  const LogicalShardsOptions options_;
  const ProcessGroup group_;
  const ShardBlock own_;
  bool has_sync_batch_norm_ = false;
  std::vector<at::Tensor> parameters_;
  std::unordered_set<const c10::TensorImpl*> summed_;  // the same
  std::vector<Place> places_;                          // of parameters
  std::vector<Buffer> buffers_;
  ShardSum::Layout layout_;
  std::vector<std::size_t> small_;  // of layout_: what is copied
  std::vector<std::size_t> large_bytes_;
  std::optional<GradientMemory> memory_;
  Place counts_;  // in doubles
  std::optional<ShardSum> sum_;
  std::int64_t step_ = 0;   // under way
  int next_ = 0;            // shard of this rank, or the number of shards
  bool has_begun_ = false;  // a shard, whose gradients are to come
  bool is_open_ = false;    // Buffer::before is of the step under way.
  double loss_ = std::numeric_limits<double>::quiet_NaN();
};

LogicalShards::Impl::Impl(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                          const LogicalShardsOptions& options)
    : modules_(modules),
      options_(options),
      group_(group_or_default(options.process_group)),
      own_(shards_of_rank(std::max(options.shards, 1), group_.world_size(), group_.rank())) {
  if (options_.shards < 1) {
    throw UsageError(concat("logical_shards: ", options_.shards, " shards, give 1 or more"));
  }
  check_device(group_);
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& module : modules_) {
    check_module(*module, options_.shards, group_.world_size());
    has_sync_batch_norm_ = has_sync_batch_norm_ || has_sync_batch_norm(*module);
    find_tensors(*module, seen);
  }
  counts_ = add(at::kDouble, number_of_counts());
}

// Here, as backward() and end_step() are where the Accelerator recovers from lost ranks.
void LogicalShards::Impl::connect() {
  if (sum_) return;
  // Ranks write into each other's memory by their own layout.
  std::string layout;
  for (const auto& [dtype, numel] : layout_) {
    layout += concat(" ", c10::toString(dtype), " ", numel);
  }
  check_same_text(group_, "logical_shards",
                  concat("shards=", options_.shards, " tensors=", layout_.size(),
                         " layout=", std::hash<std::string>()(layout), " seed=", options_.seed));
  sum_.emplace(group_, options_.shards, layout_);
  if (!sum_->local_group()) return;
  memory_.emplace([group = sum_->local_group()](
                      std::int64_t bytes) { return group.allocate_tensor(bytes, at::kByte); },
                  large_bytes_);
}

void LogicalShards::Impl::find_tensors(const torch::nn::Module& module,
                                       std::unordered_set<const c10::TensorImpl*>& seen) {
  const auto is_new = [&](const at::Tensor& tensor) {
    return tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second;
  };
  for (const at::Tensor& parameter : module.parameters()) {
    if (!parameter.requires_grad() || !is_new(parameter)) continue;
    parameters_.push_back(parameter);
    summed_.insert(parameter.unsafeGetTensorImpl());
    places_.push_back(add_parameter(parameter));
  }
  for (const auto& item : module.named_buffers()) {
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

std::int64_t LogicalShards::Impl::number_of_counts() const {
  return static_cast<std::int64_t>(kCounts + parameters_.size() + buffers_.size());
}

LogicalShards::Impl::Place LogicalShards::Impl::add(at::ScalarType dtype, std::int64_t numel) {
  auto small =
      std::ranges::find_if(small_, [&](std::size_t flat) { return layout_[flat].first == dtype; });
  if (small == small_.end()) {
    small = small_.insert(small_.end(), layout_.size());
    layout_.emplace_back(dtype, 0);
  }
  const Place place{.flat = *small, .from = layout_[*small].second, .elements = numel};
  layout_[*small].second += numel + numel % 2;  // Complex numbers begin at even places.
  return place;
}

LogicalShards::Impl::Place LogicalShards::Impl::add_parameter(const at::Tensor& parameter) {
  if (parameter.nbytes() < kLargeBytes || parameter.is_complex()) {
    return add(c10::toRealValueType(parameter.scalar_type()), flat_elements(parameter));
  }
  layout_.emplace_back(parameter.scalar_type(), parameter.numel());
  large_bytes_.push_back(parameter.nbytes());
  return {.flat = layout_.size() - 1, .elements = parameter.numel(), .is_large = true};
}

at::Tensor LogicalShards::Impl::part(const std::vector<at::Tensor>& flats, const Place& place,
                                     const at::Tensor& of) const {
  const at::Tensor real = real_view(of);
  return flats[place.flat].narrow(0, place.from, real.numel()).view(real.sizes());
}

void LogicalShards::Impl::begin_step(std::int64_t step) {
  discard_step();
  step_ = step;
  for (Buffer& buffer : buffers_) buffer.before.copy_(buffer.tensor);
  next_ = own_.size() > 0 ? own_.begin : options_.shards;
  is_open_ = true;
}

void LogicalShards::Impl::begin_shard(std::int64_t step, int shard) {
  const int first = own_.size() > 0 ? own_.begin : options_.shards;
  const bool is_next = is_open_ && step == step_ && shard == next_ && shard != first;
  if (shard != first && !is_next) {
    throw UsageError(
        concat("logical_shards: shard ", shard, " of step ", step, " begins on rank ",
               group_.rank(), ", but the next shard is ", is_open_ ? next_ : first,
               "; begin the shards of local_shards() in order, each with one backward()"));
  }
  const at::NoGradGuard no_grad;
  seed_step(options_.seed, shard, step, group_.device());
  restore_buffers();
  if (!is_next) begin_step(step);
  has_begun_ = true;
}

void LogicalShards::Impl::check_begun() const {
  if (has_begun_) return;
  throw UsageError(
      "logical_shards: backward() without begin_shard(); call begin_shard() first, and backward() "
      "once per shard: add several losses");
}

// Its gradient would stay this rank's own.
void LogicalShards::Impl::check_all_summed() const {
  for (const auto& module : modules_) {
    for (const auto& item : module->named_parameters()) {
      if (!item.value().requires_grad() || sums(item.value())) continue;
      throw UsageError(
          concat("logical_shards: the parameter '", item.key(),
                 "' was added or unfrozen later, and its gradients are not summed; let it require "
                 "gradients from the start (to freeze it, leave it out of the optimizer)"));
    }
  }
}

// In the sum its neighbours begin where it ended at first.
void LogicalShards::Impl::check_size(std::size_t index) const {
  const at::Tensor& parameter = parameters_[index];
  const Place& place = places_[index];
  if (flat_elements(parameter) == place.elements &&
      c10::toRealValueType(parameter.scalar_type()) == layout_[place.flat].first) {
    return;
  }
  throw UsageError(concat("logical_shards: a parameter has another size or dtype than at first, ",
                          place.elements, " numbers of ", c10::toString(layout_[place.flat].first),
                          ", and now ", parameter.sizes(), " of ",
                          c10::toString(parameter.scalar_type())));
}

// A gradient of an earlier step would count once for each rank.
void LogicalShards::Impl::begin_backward() {
  check_begun();
  connect();
  for (const at::Tensor& parameter : parameters_) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse() || at::count_nonzero(gradient).item<std::int64_t>() > 0) {
      throw UsageError(
          "logical_shards: the gradients of an earlier step must be cleared first; call "
          "zero_grad() of the optimizer before backward()");
    }
    gradient.reset();
  }
  // A gradient that is added to the left sibling's need not be shared.
  const bool is_kept = next_ < options_.shards && sum_->left_sibling(next_) == nullptr;
  if (memory_ && is_kept) memory_->open();
}

void LogicalShards::Impl::check_weight(const ShardWeight& weight) const {
  for (const double one : {weight.fraction_of_step, weight.weight.value_or(0)}) {
    if (one >= 0 && std::isfinite(one)) continue;
    throw UsageError(concat("logical_shards: the weight ", one, " of shard ", next_,
                            " is not a number of samples; it must be 0 or more, and finite"));
  }
}

void LogicalShards::Impl::take_gradients(double loss, const ShardWeight& weight) {
  check_begun();
  check_weight(weight);
  has_begun_ = false;
  if (memory_) memory_->close();
  if (next_ == options_.shards) return;
  try {
    push_shard(loss, weight);
  } catch (...) {
    // Its left sibling may hold a part of it.
    restore_buffers();
    discard_step();
    throw;
  }
  ++next_;
}

void LogicalShards::Impl::push_shard(double loss, const ShardWeight& weight) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) check_size(i);
  const bool is_ignored = weight.fraction_of_step == 0 && !has_sync_batch_norm_;
  // Times 0, a loss that is no number has gradients that are none either.
  for (const at::Tensor& parameter : parameters_) {
    if (is_ignored) parameter.mutable_grad().reset();
  }
  const std::vector<at::Tensor>* const sibling = sum_->left_sibling(next_);
  std::vector<bool> is_taken(parameters_.size());
  for (std::size_t i = 0; sibling == nullptr && i < parameters_.size(); ++i) {
    is_taken[i] = places_[i].is_large && adopt_gradient(parameters_[i], places_[i].flat);
  }
  const ShardTarget target{.flats = sibling != nullptr ? *sibling : sum_->next_value(),
                           .is_sum = sibling != nullptr};
  std::vector<double> counts(kCounts);
  counts[kStep] = mark_of(step_);
  if (weight.fraction_of_step > 0) {
    counts[kLoss] = loss * weight.fraction_of_step;
    counts[kShards] = 1;
    if (weight.weight) counts[kWeighted] = 1;
    counts[kWeight] = weight.weight.value_or(0);
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const bool has_gradient = is_taken[i] || put_gradient(parameters_[i], places_[i], target);
    counts.push_back(has_gradient ? 1 : 0);
  }
  for (const Buffer& buffer : buffers_) {
    counts.push_back(put_buffer(buffer, weight.fraction_of_step, target) ? 1 : 0);
  }
  target.put(counts_.flat, counts_.from, counts.data(), number_of_counts());
  sum_->push(next_);
}

// Whether the gradient is now a part of the sum, without a copy.
bool LogicalShards::Impl::adopt_gradient(const at::Tensor& parameter, std::size_t flat) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined() || gradient.is_sparse() || gradient.requires_grad()) return false;
  if (!lies_as_gradient_view(gradient, parameter) || !has_one_owner(gradient, {}) ||
      !sum_->may_adopt(gradient)) {
    return false;
  }
  sum_->adopt(flat, flat_view(gradient));
  gradient.reset();
  return true;
}

// Whether there is one.
bool LogicalShards::Impl::put_gradient(const at::Tensor& parameter, const Place& place,
                                       const ShardTarget& target) {
  at::Tensor& gradient = parameter.mutable_grad();
  const at::Tensor& flat = target.flats[place.flat];
  if (!gradient.defined()) {
    target.put_zeros(gradient_view(flat, place.from, parameter));
    return false;
  }
  if (gradient.is_sparse()) {
    refuse_with_shards("sparse gradients is not supported; make the embedding's gradients dense");
  }
  const bool has_bytes = gradient.layout() == at::kStrided &&
                         lies_as_gradient_view(gradient, parameter) &&
                         c10::toRealValueType(gradient.scalar_type()) == flat.scalar_type() &&
                         flat_elements(gradient) == place.elements;
  if (has_bytes) {
    target.put(place.flat, place.from, gradient.const_data_ptr(), place.elements);
  } else {
    target.put(gradient_view(flat, place.from, parameter), gradient);
  }
  gradient.reset();
  return true;
}

// Whether the shard has changed it.
bool LogicalShards::Impl::put_buffer(const Buffer& buffer, double fraction_of_step,
                                     const ShardTarget& target) const {
  const bool has_changed = fraction_of_step > 0 && !are_same_values(buffer.tensor, buffer.before);
  if (!buffer.place) {
    if (!has_changed) return false;
    refuse_with_shards(concat("the buffer '", buffer.name, "', which changes and has ",
                              buffer.tensor.numel(), " integers, is not supported; ", kMostIntegers,
                              " at most"));
  }
  // The mean of the changes from infinity is none.
  if (has_changed && !at::isfinite(buffer.before).all().item<bool>()) {
    refuse_with_shards(
        concat("the buffer '", buffer.name,
               "', which changes and is not finite, is not supported; begin with finite values"));
  }
  const at::Tensor own = part(target.flats, *buffer.place, buffer.tensor);
  const bool has_own = is_number(buffer.tensor) || next_ == 0;
  if (!has_changed || !has_own) {
    target.put_zeros(own);
  } else if (is_number(buffer.tensor)) {
    at::Tensor change = at::sub(real_view(buffer.tensor), real_view(buffer.before));
    target.put(own, change.mul_(fraction_of_step));
  } else {
    const at::Tensor change = buffer.tensor.to(at::kLong) - buffer.before.to(at::kLong);
    check_exact(buffer, change);
    target.put(own, change);
  }
  return has_changed;
}

// Integers are summed as doubles.
void LogicalShards::Impl::check_exact(const Buffer& buffer, const at::Tensor& change) {
  constexpr std::int64_t kMost = std::int64_t{1} << std::numeric_limits<double>::digits;
  const at::Tensor values = change.contiguous();
  const auto* const value = values.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    if (-kMost <= value[i] && value[i] <= kMost) continue;
    refuse_with_shards(concat("the buffer '", buffer.name, "', which changes by ", value[i],
                              ", is not supported; integers may change by 2^53 at most"));
  }
}

void LogicalShards::Impl::end_step(std::int64_t step) {
  if (!is_open_) begin_step(step);
  if (own_.size() > 0 && next_ != own_.end) {
    throw UsageError(concat("logical_shards: the step ends on rank ", group_.rank(),
                            " before the backward() of shard ", next_, "; its shards are ",
                            own_.begin, " to ", own_.end - 1));
  }
  if (step != step_) {
    throw UsageError(concat("logical_shards: step ", step, " ends on rank ", group_.rank(),
                            ", whose shards were of step ", step_));
  }
  check_all_summed();
  const at::NoGradGuard no_grad;
  connect();
  const std::vector<at::Tensor>& sums = sum_->finish();
  const at::Tensor counts = sums[counts_.flat].narrow(0, counts_.from, number_of_counts());
  const double* const count = counts.const_data_ptr<double>();
  if (count[kStep] != mark_of(step_) * options_.shards) {
    throw UsageError(concat("logical_shards: step ", step, " ends on rank ", group_.rank(),
                            ", and on other ranks another one; each rank must make the same steps, "
                            "with one backward() for each of its shards"));
  }
  if (count[kWeighted] != 0 && count[kWeighted] != count[kShards]) {
    throw UsageError(
        "logical_shards: only some shards of the step have a weight; give one with each loss or "
        "with none");
  }
  loss_ = count[kLoss];
  const bool divides = count[kWeighted] != 0 && count[kWeight] > 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (count[static_cast<std::size_t>(kCounts) + i] == 0) {
      // On all ranks, as optimizers update what has a gradient, zeros too.
      parameters_[i].mutable_grad().reset();
      continue;
    }
    check_size(i);
    const Place& place = places_[i];
    at::Tensor gradient = gradient_view(sums[place.flat], place.from, parameters_[i]);
    if (divides) gradient.div_(count[kWeight]);
    if (!options_.gradient_as_bucket_view) gradient = gradient.clone();
    parameters_[i].mutable_grad() = gradient;
  }
  note_sums();
  take_buffers(sums, count + kCounts + parameters_.size());
  is_open_ = false;
  // What is drawn before the next step is the same on all ranks.
  seed_step(options_.seed, options_.shards, step, group_.device());
}

// One copy per machine takes gradients for this rank's own, unless it learns that they are sums.
void LogicalShards::Impl::note_sums() const {
  if (!ModelCopy::any()) return;
  for (const at::Tensor& parameter : parameters_) {
    const auto [copy, index] = ModelCopy::find(parameter);
    if (copy) copy->note_sum(index);
  }
}

void LogicalShards::Impl::take_buffers(const std::vector<at::Tensor>& sums, const double* changes) {
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const Buffer& buffer = buffers_[i];
    buffer.tensor.copy_(buffer.before);
    if (changes[i] == 0) continue;
    const at::Tensor change = part(sums, *buffer.place, buffer.tensor);
    // Of a batch that is not finite, whose step may be skipped: from such a value it never returns.
    if (!at::isfinite(change).all().item<bool>()) continue;
    if (is_number(buffer.tensor)) {
      real_view(buffer.tensor).add_(change);
    } else if (change.any().item<bool>()) {
      buffer.tensor.copy_(buffer.before.to(at::kLong) + change.to(at::kLong));
    } else {
      refuse_with_shards(concat("the buffer '", buffer.name,
                                "', whose integers change in other shards than 0, "
                                "is not supported; change it equally in each shard"));
    }
  }
}

void LogicalShards::Impl::restore_buffers() {
  if (!is_open_) return;
  const at::NoGradGuard no_grad;
  for (const Buffer& buffer : buffers_) buffer.tensor.copy_(buffer.before);
}

void LogicalShards::Impl::discard_step() {
  if (memory_) memory_->close();
  if (sum_) sum_->clear();
  has_begun_ = is_open_ = false;
}

LogicalShards::LogicalShards(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                             const LogicalShardsOptions& options)
    : impl_(std::make_unique<Impl>(modules, options)) {}

LogicalShards::~LogicalShards() = default;
LogicalShards::LogicalShards(LogicalShards&&) noexcept = default;

std::vector<int> LogicalShards::local_shards() const {
  std::vector<int> shards;
  for (int shard = impl_->own().begin; shard < impl_->own().end; ++shard) shards.push_back(shard);
  return shards;
}

void LogicalShards::begin_shard(std::int64_t step, int shard) {
  impl_->begin_shard(step, shard);
}

void LogicalShards::backward(const at::Tensor& loss, const ShardWeight& weight) {
  impl_->begin_backward();
  impl_->check_weight(weight);
  const bool counts = weight.fraction_of_step > 0;
  if (counts || needs_every_backward()) {
    (loss * (counts ? weight.weight.value_or(weight.fraction_of_step) : 0)).backward();
  }
  impl_->take_gradients(counts ? loss.item<double>() : 0, weight);
}

void LogicalShards::begin_backward() {
  impl_->begin_backward();
}

void LogicalShards::take_gradients(double loss, const ShardWeight& weight) {
  impl_->take_gradients(loss, weight);
}

void LogicalShards::end_step(std::int64_t step) {
  impl_->end_step(step);
}

double LogicalShards::loss() const {
  return impl_->loss();
}

bool LogicalShards::sums(const at::Tensor& parameter) const {
  return impl_->sums(parameter);
}

bool LogicalShards::needs_every_backward() const {
  return impl_->needs_every_backward();
}

bool LogicalShards::is_within_shard() const {
  return impl_->is_within_shard();
}

void LogicalShards::check_device(const ProcessGroup& group) {
  if (group.device().is_cpu()) return;
  refuse_with_shards(
      concat("device ", group.device().str(), " is not supported; train on the CPU"));
}

bool LogicalShards::is_within_step() const {
  return impl_->is_within_step();
}

void LogicalShards::restore_buffers() {
  impl_->restore_buffers();
}

void LogicalShards::discard_step() {
  impl_->discard_step();
}

}  // namespace lockstep
