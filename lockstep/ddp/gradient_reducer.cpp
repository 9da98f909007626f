#include "lockstep/ddp/gradient_reducer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "lockstep/base/check.h"
#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/ddp/gradient_bucket.h"
#include "lockstep/ddp/gradient_memory.h"
#include "lockstep/ddp/large_gradient.h"

namespace lockstep {
namespace {

using Nodes = decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor>()));

// Runs after autograd has written a parameter's .grad.
class AfterAccumulate final : public torch::autograd::FunctionPostHook {
 public:
  explicit AfterAccumulate(std::function<void()> action) : action_(std::move(action)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    action_();
    return outputs;
  }

 private:
  std::function<void()> action_;
};

}  // namespace

struct GradientReducer::Impl {
  // Constant after construction.
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  ProcessGroup group;
  Options options;
  ExchangeOptions exchange;
  std::vector<GradientShape> shapes;
  std::unique_ptr<GradientMemory> memory;
  struct Hook {
    Nodes accumulator;  // kept alive: the parameter holds it weakly
    std::uintptr_t key;
  };
  std::vector<Hook> hooks;

  mutable std::mutex mutex;  // guards all that follows
  bool sync = true;
  bool rebuilt = false;
  bool has_norm = false;  // exchange.sum_of_squares is that of all gradients
  std::vector<std::unique_ptr<GradientExchange>> buckets;
  struct Place {
    std::size_t bucket;
    std::size_t position;
  };
  std::vector<Place> places;  // of each parameter

  // Of the backward pass under way.
  bool in_backward = false;
  std::vector<bool> ready;            // by parameter
  std::vector<std::size_t> unready;   // by bucket: how many gradients it waits for
  std::size_t next_bucket = 0;        // buckets start in order, the same on every rank
  std::vector<std::size_t> arrivals;  // parameters in the order in which they became ready

  void build(const std::vector<std::size_t>& order);
  void begin_backward();
  void add_up_squares();
  void gradient_ready(std::size_t index);
  void mark_ready(std::size_t index);
  void finish_backward();
  void rebuild_in_order_of_arrival();
};

void GradientReducer::Impl::build(const std::vector<std::size_t>& order) {
  buckets.clear();
  places.resize(parameters.size());
  for (Bucket& indices : plan_buckets(shapes, order, options.caps)) {
    std::vector<at::Tensor> members;
    for (std::size_t position = 0; position < indices.size(); ++position) {
      places[indices[position]] = {buckets.size(), position};
      members.push_back(parameters[indices[position]]);
    }
    if (shapes[indices[0]].alone) {
      buckets.push_back(std::make_unique<LargeGradient>(group, exchange, indices[0], members[0]));
    } else {
      buckets.push_back(std::make_unique<GradientBucket>(group, exchange, std::move(indices),
                                                         std::move(members)));
    }
  }
}

void GradientReducer::Impl::begin_backward() {
  in_backward = true;
  ready.assign(parameters.size(), false);
  unready.clear();
  for (const auto& bucket : buckets) unready.push_back(bucket->size());
  next_bucket = 0;
  arrivals.clear();
  has_norm = false;
  if (options.gradient_norm) exchange.sum_of_squares.zero_();
  torch::autograd::Engine::get_default_engine().queue_callback([this] { finish_backward(); });
}

void GradientReducer::Impl::gradient_ready(std::size_t index) {
  const std::lock_guard lock(mutex);
  if (!sync) return;
  if (parameters[index].grad().layout() != at::kStrided) {
    throw UsageError(concat("DistributedDataParallel on rank ", group.rank(), ": parameter '",
                            names[index],
                            "' has a sparse gradient, which is not supported yet; build its "
                            "embedding without sparse(true)"));
  }
  if (!in_backward) begin_backward();
  if (ready[index]) {
    throw UsageError(concat("DistributedDataParallel on rank ", group.rank(), ": parameter '",
                            names[index],
                            "' got a second gradient in one backward pass: after a backward that "
                            "failed build the wrapper anew; a module that runs its "
                            "own backward inside (checkpointing) is not supported yet"));
  }
  mark_ready(index);
}

void GradientReducer::Impl::mark_ready(std::size_t index) {
  ready[index] = true;
  arrivals.push_back(index);
  const Place& place = places[index];
  buckets[place.bucket]->fill(place.position);
  --unready[place.bucket];
  for (; next_bucket < buckets.size() && unready[next_bucket] == 0; ++next_bucket) {
    buckets[next_bucket]->start_average();
  }
}

void GradientReducer::Impl::finish_backward() {
  {
    const std::lock_guard lock(mutex);
    for (std::size_t index = 0; index < parameters.size(); ++index) {
      if (!ready[index]) mark_ready(index);
    }
    LOCKSTEP_ASSERT(next_bucket == buckets.size());
    for (const auto& bucket : buckets) bucket->finish();
    if (options.gradient_norm) add_up_squares();
    in_backward = false;
    memory->close();
    if (!rebuilt) rebuild_in_order_of_arrival();
  }
  if (options.after_exchange) options.after_exchange();
}

void GradientReducer::Impl::add_up_squares() {
  group.all_reduce_into(exchange.sum_of_squares, exchange.sum_of_squares);
  has_norm = true;
}

void GradientReducer::Impl::rebuild_in_order_of_arrival() {
  rebuilt = true;
  const auto count = static_cast<std::int64_t>(arrivals.size());
  const at::Tensor order = at::empty({count}, at::kLong);
  std::copy(arrivals.begin(), arrivals.end(), order.mutable_data_ptr<std::int64_t>());
  const at::Tensor on_device = order.to(group.device());
  group.broadcast(on_device, 0);
  const at::Tensor agreed = on_device.to(at::kCPU);
  const auto* begin = agreed.const_data_ptr<std::int64_t>();
  build({begin, begin + count});
}

GradientReducer::GradientReducer(std::vector<at::Tensor> parameters, std::vector<std::string> names,
                                 ProcessGroup group, Options options)
    : impl_(std::make_unique<Impl>()) {
  impl_->parameters = std::move(parameters);
  impl_->names = std::move(names);
  impl_->group = std::move(group);
  impl_->options = std::move(options);
  // A gradient that travels nowhere need not be rounded.
  if (impl_->group.world_size() > 1) impl_->exchange.dtype = impl_->options.exchange_dtype;
  if (impl_->options.gradient_norm) {
    impl_->exchange.sum_of_squares =
        at::zeros({1}, at::TensorOptions(at::kDouble).device(impl_->group.device()));
  }

  std::vector<std::size_t> large;  // in bytes
  std::map<std::pair<at::ScalarType, std::string>, int> kinds;
  for (const at::Tensor& parameter : impl_->parameters) {
    const auto [kind, is_new] =
        kinds.try_emplace({parameter.scalar_type(), parameter.device().str()}, kinds.size());
    impl_->shapes.push_back(
        {.bytes = static_cast<std::int64_t>(parameter.nbytes()),
         .kind = kind->second,
         .alone = LargeGradient::suits(impl_->group, impl_->exchange, parameter)});
    if (impl_->shapes.back().alone) large.push_back(parameter.nbytes());
  }
  impl_->memory = std::make_unique<GradientMemory>(impl_->group, std::move(large));
  // Gradients come in about the reverse order of the parameters, until the first pass shows it.
  std::vector<std::size_t> order(impl_->parameters.size());
  std::iota(order.rbegin(), order.rend(), 0);
  impl_->build(order);

  for (std::size_t index = 0; index < impl_->parameters.size(); ++index) {
    auto accumulator = torch::autograd::impl::grad_accumulator(impl_->parameters[index]);
    const auto key = accumulator->add_post_hook(std::make_unique<AfterAccumulate>(
        [impl = impl_.get(), index] { impl->gradient_ready(index); }));
    impl_->hooks.push_back({std::move(accumulator), key});
  }
}

GradientReducer::~GradientReducer() {
  for (Impl::Hook& hook : impl_->hooks) hook.accumulator->del_post_hook(hook.key);
}

void GradientReducer::before_forward() {
  impl_->memory->close();
}

void GradientReducer::after_forward() {
  if (c10::GradMode::is_enabled()) impl_->memory->open();
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
    const at::Tensor& parameter = impl_->parameters[index];
    const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
    if (parameter.requires_grad() && accumulator == impl_->hooks[index].accumulator) continue;
    throw UsageError(concat("DistributedDataParallel on rank ", impl_->group.rank(),
                            ": parameter '", impl_->names[index],
                            "' was frozen or changed in dtype or device after the module was "
                            "wrapped; change it first, then wrap the module"));
  }
}

std::optional<double> GradientReducer::gradient_norm() const {
  const std::lock_guard lock(impl_->mutex);
  if (!impl_->has_norm) return std::nullopt;
  return std::sqrt(impl_->exchange.sum_of_squares.item<double>());
}

bool GradientReducer::in_backward() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->in_backward;
}

}  // namespace lockstep
