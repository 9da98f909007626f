#include "lockstep/ddp/gradient_reducer.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/check.h"
#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/ddp/end_of_backward.h"
#include "lockstep/ddp/error_context.h"
#include "lockstep/ddp/exchange_plan.h"
#include "lockstep/ddp/exchange_recorder.h"
#include "lockstep/ddp/exchange_schedule.h"
#include "lockstep/ddp/gradient_hooks.h"
#include "lockstep/ddp/gradient_memory.h"
#include "lockstep/ddp/gradient_weight.h"
#include "lockstep/ddp/graph_agreement.h"
#include "lockstep/ddp/large_gradient.h"
#include "lockstep/ddp/reached_parameters.h"

namespace lockstep {

struct GradientReducer::Impl {
  // Constant after construction.
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  ProcessGroup group;
  DistributedDataParallelOptions options;
  Plan plan;
  ExchangeOptions exchange;
  std::string backward_name;  // what ranks must agree on
  std::string weighted_backward_name;
  std::unique_ptr<GradientMemory> memory;
  std::unique_ptr<GradientHooks> hooks;

  mutable std::mutex mutex;  // guards all that follows
  bool sync = true;
  bool has_norm = false;                       // exchange.sum_of_squares is that of all gradients
  std::unique_ptr<ReachedParameters> reached;  // null where unused parameters are not looked for

  // Known once the first backward pass has shown it.
  bool is_planned = false;
  std::vector<std::unique_ptr<GradientExchange>> exchanges;
  std::vector<ExchangePlace> places;  // of each parameter
  std::unique_ptr<ExchangeRecorder> recorder;
  std::vector<bool> is_sparse;
  std::vector<int> additions;  // to each gradient, on this rank, in one backward pass
  // Got a gradient although the outputs of forward do not depend on them.
  std::vector<bool> used_elsewhere;

  GradientWeight weight;  // of the gradients since the last exchange
  // The one that came last, and how it was left: whether gradients were changed since.
  std::optional<std::size_t> last_gradient;
  std::int64_t last_version = 0;
  std::uint64_t passes = 0;  // whose gradients were or are being exchanged

  // Of the backward pass under way.
  bool in_backward = false;
  Agreement agreement;  // of all ranks that this pass begins
  GradientScale scale;
  ExchangeSchedule schedule;
  std::vector<int> expected;                // additions
  std::vector<std::size_t> last_additions;  // in the first pass: which parameters, in order

  bool is_reached(std::size_t index) const {
    return !reached || !reached->is_known() || reached->contains(index);
  }
  explicit Impl(ProcessGroup of) : group(std::move(of)) {
    exchange.name = concat("model ", group.count_replica());
    backward_name = "backward of " + exchange.name;
    weighted_backward_name = "weighted pass, " + exchange.name;
  }

  UsageError usage_error(std::size_t index, const std::string& what) const;
  void gradient_ready(std::size_t index);
  void add_weight(const WeightedPass::Facts* pass);
  void forget_what_was_given_up();
  bool has_gradients() const;
  void begin_exchange();
  void begin_backward();
  void fill(std::size_t index);
  const std::vector<Agreement::Numbers>& wait_until_all_begin();
  void start_complete();
  void finish_backward();
  void plan_by_first_pass();
  ObservedGraph observe() const;
  void check_layout(std::size_t index) const;
  void add_up_squares();
  std::string context(std::size_t exchange_number) const;
};

UsageError GradientReducer::Impl::usage_error(std::size_t index, const std::string& what) const {
  return UsageError(concat("DistributedDataParallel on rank ", group.rank(), ": parameter '",
                           names[index], "' ", what));
}

void GradientReducer::Impl::gradient_ready(std::size_t index) {
  const std::lock_guard lock(mutex);
  add_weight(WeightedPass::current());
  if (!sync) {
    last_gradient = index;
    last_version = parameters[index].grad()._version();
    return;
  }
  if (!in_backward) {
    begin_backward();
    at_end_of_backward([this] { finish_backward(); });
  }
  if (!is_reached(index)) used_elsewhere[index] = true;
  if (!is_planned) {
    ++additions[index];
    last_additions.push_back(index);
    return;
  }
  switch (schedule.arrive(index)) {
    case ExchangeSchedule::Arrival::kPart:
      return;
    case ExchangeSchedule::Arrival::kComplete:
    case ExchangeSchedule::Arrival::kMore:
      fill(index);
      start_complete();
      return recorder->look(exchanges);
    case ExchangeSchedule::Arrival::kLate:
      throw usage_error(index,
                        "got a further gradient after its bucket was exchanged: more in one "
                        "backward pass than in the first one, or, with find_unused_parameters, one "
                        "that does not come from the outputs of forward; after a backward that "
                        "failed build the wrapper anew");
    case ExchangeSchedule::Arrival::kNotExchanged:
      throw usage_error(index,
                        "got a gradient that no rank had in the first backward pass; with a graph "
                        "that changes leave out static_graph");
  }
}

void GradientReducer::Impl::add_weight(const WeightedPass::Facts* pass) {
  if (weight.add(pass)) return;
  throw UsageError(concat("DistributedDataParallel on rank ", group.rank(),
                          ": some of the backward passes between two exchanges have a weight, and "
                          "others have none; call model.backward(loss, {.weight = n}) for all"));
}

// Gradients that the program has dropped, or set to zero, since they were added up.
void GradientReducer::Impl::forget_what_was_given_up() {
  if (!weight.counts()) return;
  const at::Tensor last = last_gradient ? parameters[*last_gradient].grad() : at::Tensor();
  const bool is_untouched = last.defined() && last._version() == last_version;
  if (!is_untouched && !has_gradients()) weight.forget();
}

bool GradientReducer::Impl::has_gradients() const {
  return std::any_of(parameters.begin(), parameters.end(), [](const at::Tensor& parameter) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) return false;
    return at::count_nonzero(gradient.is_sparse() ? gradient._values() : gradient)
               .item<std::int64_t>() > 0;
  });
}

// Weights and votes go with what tells the others that this pass begins.
void GradientReducer::Impl::begin_exchange() {
  ++passes;
  const auto numbers = weight.to_tell();
  agreement =
      group.begin_agreed(weight.is_weighted() ? weighted_backward_name : backward_name, numbers);
  scale = numbers ? GradientScale([this] { return GradientWeight::scale(wait_until_all_begin()); })
                  : GradientScale();
}

void GradientReducer::Impl::begin_backward() {
  in_backward = true;
  recorder->begin_backward();
  begin_exchange();
  has_norm = false;
  if (options.gradient_norm) exchange.sum_of_squares.zero_();
  if (!is_planned) return;
  expected = additions;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    const bool may_come = is_reached(index) || used_elsewhere[index];
    if (!may_come) {
      expected[index] = 0;
    } else if (expected[index] == 0 && !options.static_graph) {
      expected[index] = 1;  // not in the first pass, but the graph may have changed
    }
  }
  schedule.begin(expected);
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    if (expected[index] == 0 && places[index].exchange != ExchangeSchedule::kNoBucket) fill(index);
  }
  start_complete();
}

void GradientReducer::Impl::check_layout(std::size_t index) const {
  const at::Tensor& gradient = parameters[index].grad();
  if (!gradient.defined()) return;
  const bool sparse = gradient.layout() == at::kSparse;
  if (sparse ? is_sparse[index] : !is_sparse[index] && gradient.layout() == at::kStrided) return;
  throw usage_error(
      index, concat("has a ", is_sparse[index] ? "strided" : "sparse",
                    " gradient where some rank had a ", is_sparse[index] ? "sparse" : "strided",
                    " one in the first backward pass; use it in one way only"));
}

void GradientReducer::Impl::fill(std::size_t index) {
  check_layout(index);
  const ExchangePlace& place = places[index];
  const auto range = recorder->filling(place.exchange);
  exchanges[place.exchange]->fill(place.position, scale);
}

// Nothing is exchanged before all ranks have begun the same.
const std::vector<Agreement::Numbers>& GradientReducer::Impl::wait_until_all_begin() {
  std::optional<StepTimer::Guard> waiting;
  if (options.step_timer) waiting.emplace(*options.step_timer, StepPhase::kExchange);
  try {
    return agreement.get();
  } catch (const Error&) {
    rethrow_with_context(concat("this rank begins ", backward_name));
  }
}

// Which part of which model's gradients: "in backward of model 0, bucket 2: fc.weight … fc2.bias".
std::string GradientReducer::Impl::context(std::size_t exchange_number) const {
  const BucketLayout& part = recorder->layout()[exchange_number];
  std::string text = concat("this rank is in ", backward_name, ", ", name_of(part.kind), " ",
                            exchange_number, ": ", part.parameters.front());
  if (part.parameters.size() > 1) text += concat(" … ", part.parameters.back());
  return text;
}

void GradientReducer::Impl::start_complete() {
  while (const auto next = schedule.take_next()) {
    if (*next == 0) wait_until_all_begin();
    const auto range = recorder->starting(*next);
    try {
      exchanges[*next]->start_average(scale);
    } catch (const Error&) {
      rethrow_with_context(context(*next));
    }
  }
}

void GradientReducer::Impl::finish_backward() {
  {
    const std::lock_guard lock(mutex);
    recorder->end_of_autograd();
    recorder->look(exchanges);
    if (!is_planned) {
      wait_until_all_begin();
      plan_by_first_pass();
      schedule.begin(std::vector<int>(parameters.size(), 1));
    }
    for (const std::size_t index : schedule.complete_all()) fill(index);
    start_complete();
    if (options.step_timer) options.step_timer->arrive();
    for (std::size_t number = 0; number < exchanges.size(); ++number) {
      const auto range = recorder->finishing(number);
      try {
        exchanges[number]->finish();
      } catch (const Error&) {
        rethrow_with_context(context(number));
      }
    }
    recorder->end_of_exchange();
    if (options.gradient_norm) add_up_squares();
    weight.count_votes(agreement);
    in_backward = false;
    weight.forget();
    if (reached) reached->clear();
    memory->close();
  }
  if (plan.after_exchange) plan.after_exchange();
}

ObservedGraph GradientReducer::Impl::observe() const {
  ObservedGraph graph;
  std::vector<bool> seen(parameters.size());
  // Complete is a gradient with its last addition; what got none comes last.
  for (auto index = last_additions.rbegin(); index != last_additions.rend(); ++index) {
    if (!seen[*index]) graph.order.push_back(*index);
    seen[*index] = true;
  }
  std::reverse(graph.order.begin(), graph.order.end());
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    if (!seen[index]) graph.order.push_back(index);
    const at::Tensor& gradient = parameters[index].grad();
    graph.has_gradient.push_back(gradient.defined());
    graph.is_sparse.push_back(gradient.defined() && gradient.layout() == at::kSparse);
  }
  return graph;
}

void GradientReducer::Impl::plan_by_first_pass() {
  const ObservedGraph graph = agree_on_graph(group, observe());
  is_sparse = graph.is_sparse;
  ExchangePlan planned = plan_exchanges(parameters, group, exchange, graph,
                                        {.caps = plan.caps,
                                         .leave_out_unused = options.static_graph,
                                         .delayed = plan.delayed,
                                         .delay_until = plan.delay_until});
  recorder->plan(layout_of(planned, parameters, names, exchange));
  exchanges = std::move(planned.exchanges);
  places = std::move(planned.places);
  std::vector<std::size_t> bucket_of;
  for (const ExchangePlace& place : places) bucket_of.push_back(place.exchange);
  schedule = ExchangeSchedule(std::move(bucket_of), exchanges.size());
  is_planned = true;
  last_additions = {};
}

void GradientReducer::Impl::add_up_squares() {
  group.all_reduce_into(exchange.sum_of_squares, exchange.sum_of_squares);
  has_norm = true;
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
      impl_->parameters, [impl = impl_.get()](std::size_t index) { impl->gradient_ready(index); });
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
  impl_->memory->close();
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

void GradientReducer::run_weighted(double weight, const std::function<void()>& backward) {
  const WeightedPass pass(weight);
  std::uint64_t passes_before = 0;
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->forget_what_was_given_up();
    impl_->add_weight(WeightedPass::current());
    passes_before = impl_->passes;
  }
  std::optional<GradientHooks::AddZeros> no_gradient;
  if (weight == 0) no_gradient.emplace(*impl_->hooks);
  backward();
  {
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->sync || impl_->passes != passes_before) return;
    impl_->begin_backward();
  }
  impl_->finish_backward();
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
  return impl_->in_backward;
}

}  // namespace lockstep
