#include "lockstep/ddp/internal/gradient_reducer.h"

#include <cmath>
#include <mutex>

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "lockstep/comm/internal/agreement.h"
#include "lockstep/ddp/exchange/large_gradient.h"
#include "lockstep/ddp/internal/gradient_reducer_impl.h"

namespace lockstep::inline internal {

GradientReducer::Impl::Registry& GradientReducer::Impl::registry() {
  static auto* const of_process = new Registry();  // never destroyed
  return *of_process;
}

GradientReducer::Impl::Impl(ProcessGroup of) : group(std::move(of)) {
  exchange.name = concat("model ", count_replica(group));
  backward_name = "backward of " + exchange.name;
  weighted_backward_name = "weighted pass, " + exchange.name;
  backward_with_units_name = "weighted 16-bit pass, " + exchange.name;
  const std::lock_guard lock(registry().mutex);
  registry().reducers.push_back(this);
}

GradientReducer::Impl::~Impl() {
  const std::lock_guard lock(registry().mutex);
  std::erase(registry().reducers, this);
}

// A model whose mutex is taken is in a backward pass, which may wait for other ranks.
void GradientReducer::Impl::forget_what_all_gave_up() {
  const std::lock_guard lock(registry().mutex);
  for (Impl* const of_model : registry().reducers) {
    if (of_model->training_thread.load() != std::this_thread::get_id()) continue;
    const std::unique_lock own_lock(of_model->mutex, std::try_to_lock);
    if (own_lock && of_model->phase == Phase::kNone) of_model->forget_what_was_given_up();
  }
}

GradientReducer::GradientReducer(std::vector<at::Tensor> parameters, std::vector<std::string> names,
                                 ProcessGroup group, const DistributedDataParallelOptions& options,
                                 Plan plan)
    : impl_(std::make_unique<Impl>(std::move(group))) {
  impl_->parameters = std::move(parameters);
  impl_->names = std::move(names);
  impl_->options = options;
  impl_->plan = std::move(plan);
  impl_->recorder = std::make_unique<ExchangeRecorder>(impl_->options.measure_exchange);
  impl_->exchange.gradient_as_bucket_view = impl_->options.gradient_as_bucket_view;
  impl_->exchange.comm_hook = impl_->options.comm_hook;
  // A gradient that travels nowhere need not be rounded.
  if (impl_->group.world_size() > 1) impl_->exchange.dtype = impl_->options.exchange_dtype;
  if (impl_->options.gradient_norm) {
    impl_->exchange.sum_of_squares =
        at::zeros({1}, at::TensorOptions(at::kDouble).device(impl_->group.device()));
  }
  const std::size_t count = impl_->parameters.size();
  impl_->additions.resize(count);
  impl_->used_elsewhere.resize(count);
  std::vector<std::size_t> large;  // in bytes
  for (const at::Tensor& parameter : impl_->parameters) {
    if (LargeGradient::suits(impl_->group, impl_->exchange, parameter)) {
      large.push_back(parameter.nbytes());
    }
  }
  impl_->memory = std::make_unique<GradientMemory>(impl_->group, std::move(large));
  impl_->hooks = std::make_unique<GradientHooks>(
      impl_->parameters, [impl = impl_.get()](std::size_t index, const at::Tensor& arrived) {
        impl->gradient_ready(index, arrived);
      });
  if (impl_->options.find_unused_parameters) {
    std::vector<const torch::autograd::Node*> accumulators;
    for (std::size_t index = 0; index < count; ++index) {
      accumulators.push_back(impl_->hooks->accumulator(index));
    }
    impl_->reached = std::make_unique<ReachedParameters>(accumulators);
  }
}

GradientReducer::~GradientReducer() = default;

void GradientReducer::before_forward() {
  impl_->training_thread = std::this_thread::get_id();
  impl_->memory->close();
  const std::lock_guard lock(impl_->mutex);
  if (impl_->phase == Impl::Phase::kNone) impl_->forget_what_was_given_up();
}

void GradientReducer::after_forward() {
  if (c10::GradMode::is_enabled()) impl_->memory->open();
}

void GradientReducer::add_outputs(const std::vector<at::Tensor>& outputs) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->reached && c10::GradMode::is_enabled()) impl_->reached->add(outputs);
}

void GradientReducer::set_sync(bool sync) {
  const std::lock_guard lock(impl_->mutex);
  impl_->sync = sync;
}

bool GradientReducer::sync() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->sync;
}

void GradientReducer::check_parameters() const {
  for (std::size_t index = 0; index < impl_->parameters.size(); ++index) {
    if (impl_->hooks->leads_here(index, impl_->parameters[index])) continue;
    throw impl_->usage_error(index,
                             "was frozen or changed in dtype or device after the module was "
                             "wrapped; change it first, then wrap the module");
  }
}

void GradientReducer::run_weighted(double weight, at::ScalarType loss,
                                   const std::function<void(double seed)>& backward) {
  if (impl_->no_data) weight = 0;
  std::optional<WeightedPass> pass;
  GradientWeight before;
  GradientWeight::Parts parts;
  bool exchanges = false;
  impl_->forget_what_all_gave_up();
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->forget_what_was_given_up();
    before = impl_->weight;
    parts = impl_->weight.parts_of(weight, loss);
    pass.emplace(
        WeightedPass::Facts{.weight = weight, .is_in_loss = GradientWeight::is_held_by(loss)});
    impl_->own_pass = WeightedPass::current()->number;
    impl_->add_weight(WeightedPass::current());
    exchanges = impl_->sync;
    // All ranks tell it before any of them has to wait for another in a layer (SyncBatchNorm).
    if (exchanges) impl_->begin_exchange();
  }
  std::optional<GradientHooks::Multiply> multiply;
  if (parts.factor != 1 && !impl_->no_data) multiply.emplace(*impl_->hooks, parts.factor);
  try {
    backward(parts.seed);
  } catch (...) {
    const std::lock_guard lock(impl_->mutex);
    impl_->end_failed_pass(before);
    throw;
  }
  if (!exchanges) return;
  const c10::NoGradGuard no_grad;
  impl_->finish_backward();
}

void GradientReducer::give_up_passes() {
  const std::lock_guard lock(impl_->mutex);
  impl_->forget_passes();
}

void GradientReducer::set_has_data(bool has_data) {
  if (has_data) return impl_->no_data.reset();
  if (!impl_->no_data) impl_->no_data.emplace(*impl_->hooks, 0);
}

void GradientReducer::cast_vote(bool has_data, int vote) {
  const std::lock_guard lock(impl_->mutex);
  impl_->weight.cast_vote(has_data, vote);
}

std::optional<int> GradientReducer::withdraw_vote() {
  const std::lock_guard lock(impl_->mutex);
  return impl_->weight.withdraw_vote();
}

std::optional<double> GradientReducer::gradient_norm() const {
  const std::lock_guard lock(impl_->mutex);
  if (!impl_->has_norm) return std::nullopt;
  return std::sqrt(impl_->exchange.sum_of_squares.item<double>());
}

std::vector<BucketLayout> GradientReducer::bucket_layout() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->recorder->layout();
}

std::optional<ExchangeReport> GradientReducer::exchange_report() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->recorder->report();
}

bool GradientReducer::in_backward() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->phase == Impl::Phase::kExchanges;
}

}  // namespace lockstep::inline internal
