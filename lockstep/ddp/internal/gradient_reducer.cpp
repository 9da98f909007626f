#include "lockstep/ddp/internal/gradient_reducer.h"

#include <cmath>

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/agreement.h"
#include "lockstep/ddp/exchange/large_gradient.h"

namespace lockstep::inline internal {

GradientReducer::Registry& GradientReducer::registry() {
  static auto* const of_process = new Registry();  // never destroyed
  return *of_process;
}

GradientReducer::GradientReducer(std::vector<at::Tensor> parameters, std::vector<std::string> names,
                                 ProcessGroup group, const DistributedDataParallelOptions& options,
                                 Plan plan)
    : parameters_(std::move(parameters)),
      names_(std::move(names)),
      group_(std::move(group)),
      options_(options),
      plan_(std::move(plan)),
      recorder_(options_.measure_exchange),
      additions_(parameters_.size()),
      used_elsewhere_(parameters_.size()) {
  exchange_.name =
      plan_.one_copy ? plan_.one_copy->copy().name() : concat("model ", count_replica(group_));
  exchange_.gradient_as_bucket_view = options_.gradient_as_bucket_view;
  exchange_.comm_hook = options_.comm_hook;
  // A gradient that travels nowhere need not be rounded.
  if (group_.world_size() > 1) exchange_.dtype = options_.exchange_dtype;
  if (options_.gradient_norm) {
    exchange_.sum_of_squares =
        at::zeros({1}, at::TensorOptions(at::kDouble).device(group_.device()));
  }
  backward_name_ = "backward of " + exchange_.name;
  weighted_backward_name_ = "weighted pass, " + exchange_.name;
  backward_with_units_name_ = "weighted 16-bit pass, " + exchange_.name;
  std::vector<std::size_t> large;  // in bytes
  for (const at::Tensor& parameter : parameters_) {
    if (LargeGradient::suits(group_, exchange_, parameter)) large.push_back(parameter.nbytes());
  }
  GradientMemory::Allocate allocate = [group = group_](std::int64_t bytes) {
    return group.allocate_tensor(bytes, at::kByte);
  };
  if (plan_.one_copy) {
    allocate = [one_copy = plan_.one_copy](std::int64_t bytes) {
      return one_copy->copy().allocate_gradient(bytes, at::kByte);
    };
  }
  memory_ = std::make_unique<GradientMemory>(std::move(allocate), std::move(large));
  hooks_ = std::make_unique<GradientHooks>(parameters_, *this);
  if (options_.find_unused_parameters) {
    std::vector<const torch::autograd::Node*> accumulators;
    for (std::size_t index = 0; index < parameters_.size(); ++index) {
      accumulators.push_back(hooks_->accumulator(index));
    }
    reached_ = std::make_unique<ReachedParameters>(accumulators);
  }
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  all.reducers.push_back(this);
}

GradientReducer::~GradientReducer() {
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  std::erase(all.reducers, this);
}

// A model whose mutex is taken is in a backward pass, which may wait for other ranks.
void GradientReducer::forget_what_all_gave_up() {
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  for (GradientReducer* const of_model : all.reducers) {
    if (of_model->training_thread_.load() != std::this_thread::get_id()) continue;
    if (!of_model->mutex_.try_lock()) continue;
    const MutexLock own_lock(of_model->mutex_, std::adopt_lock);
    if (of_model->phase_ == Phase::kNone) of_model->forget_what_was_given_up();
  }
}

void GradientReducer::before_forward() {
  training_thread_ = std::this_thread::get_id();
  memory_->close();
  const MutexLock lock(mutex_);
  if (phase_ == Phase::kNone) forget_what_was_given_up();
}

void GradientReducer::after_forward() {
  if (c10::GradMode::is_enabled()) memory_->open();
}

void GradientReducer::add_outputs(const std::vector<at::Tensor>& outputs) {
  const MutexLock lock(mutex_);
  if (reached_ && c10::GradMode::is_enabled()) reached_->add(outputs);
}

void GradientReducer::set_sync(bool sync) {
  const MutexLock lock(mutex_);
  sync_ = sync;
}

bool GradientReducer::sync() const {
  const MutexLock lock(mutex_);
  return sync_;
}

void GradientReducer::check_parameters() const {
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    if (hooks_->leads_here(index, parameters_[index])) continue;
    throw usage_error(index,
                      "was frozen or changed in dtype or device after the module was "
                      "wrapped; change it first, then wrap the module");
  }
}

void GradientReducer::run_weighted(double weight, at::ScalarType loss,
                                   const std::function<void(double seed)>& backward) {
  if (no_data_) weight = 0;
  std::optional<WeightedPass> pass;
  GradientWeight before;
  GradientWeight::Parts parts;
  bool exchanges = false;
  forget_what_all_gave_up();
  {
    const MutexLock lock(mutex_);
    forget_what_was_given_up();
    before = weight_;
    parts = weight_.parts_of(weight, loss);
    pass.emplace(
        WeightedPass::Facts{.weight = weight, .is_in_loss = GradientWeight::is_held_by(loss)});
    own_pass_ = WeightedPass::current()->number;
    add_weight(WeightedPass::current());
    exchanges = sync_;
    // All ranks tell it before any of them has to wait for another in a layer (SyncBatchNorm).
    if (exchanges) begin_exchange();
  }
  std::optional<GradientHooks::Multiply> multiply;
  if (parts.factor != 1 && !no_data_) multiply.emplace(*hooks_, parts.factor);
  try {
    backward(parts.seed);
  } catch (...) {
    const MutexLock lock(mutex_);
    end_failed_pass(before);
    throw;
  }
  if (!exchanges) return;
  const c10::NoGradGuard no_grad;
  finish_backward();
}

void GradientReducer::discard_passes() {
  const MutexLock lock(mutex_);
  if (plan_.one_copy) plan_.one_copy->copy().give_up_gradients();
  forget_passes();
}

void GradientReducer::set_has_data(bool has_data) {
  if (has_data) return no_data_.reset();
  if (!no_data_) no_data_.emplace(*hooks_, 0);
}

void GradientReducer::cast_vote(bool has_data, int vote) {
  if (plan_.one_copy) {
    throw UsageError(concat("DistributedDataParallel on rank ", group_.rank(),
                            ": join() is not supported with one_copy_per_machine; leave the option "
                            "out"));
  }
  const MutexLock lock(mutex_);
  weight_.cast_vote(has_data, vote);
}

std::optional<int> GradientReducer::withdraw_vote() {
  const MutexLock lock(mutex_);
  return weight_.withdraw_vote();
}

std::optional<double> GradientReducer::gradient_norm() {
  const MutexLock lock(mutex_);
  if (plan_.one_copy && !has_norm_) {
    const auto all = CopyPlaces::of_own_gradients(parameters_);
    exchange_.sum_of_squares.fill_(all.average_in_place().of_backward);
    has_norm_ = all.hold_gradients();
  }
  if (!has_norm_) return std::nullopt;
  return std::sqrt(exchange_.sum_of_squares.item<double>());
}

std::vector<BucketLayout> GradientReducer::bucket_layout() const {
  const MutexLock lock(mutex_);
  return recorder_.layout();
}

std::optional<ExchangeReport> GradientReducer::exchange_report() const {
  const MutexLock lock(mutex_);
  return recorder_.report();
}

bool GradientReducer::in_backward() const {
  const MutexLock lock(mutex_);
  return phase_ == Phase::kExchanges;
}

}  // namespace lockstep::inline internal
