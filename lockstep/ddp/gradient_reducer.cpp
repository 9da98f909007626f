#include "lockstep/ddp/gradient_reducer.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/check.h"
#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/ddp/end_of_backward.h"
#include "lockstep/ddp/exchange_plan.h"
#include "lockstep/ddp/exchange_recorder.h"
#include "lockstep/ddp/exchange_schedule.h"
#include "lockstep/ddp/gradient_hooks.h"
#include "lockstep/ddp/gradient_memory.h"
#include "lockstep/ddp/graph_agreement.h"
#include "lockstep/ddp/large_gradient.h"
#include "lockstep/ddp/reached_parameters.h"

namespace lockstep {

struct GradientReducer::Impl {
  // Constant after construction.
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  ProcessGroup group;
  Options options;
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

  // Of the gradients since the last exchange.
  enum class Weighing : std::uint8_t { kUnknown, kPlain, kWeighted };
  Weighing weighing = Weighing::kUnknown;
  bool is_announced = false;  // the weight of the backward pass under way
  double weight = 0;

  struct Vote {
    bool has_data = true;
    int own = 0;
    std::optional<int> highest = std::nullopt;
  };
  std::optional<Vote> vote;

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
    weighted_backward_name = "weighted " + backward_name;
  }

  UsageError usage_error(std::size_t index, const std::string& what) const;
  void gradient_ready(std::size_t index);
  void check_weighing();
  void begin_exchange();
  void begin_backward();
  void fill(std::size_t index);
  const std::vector<Agreement::Numbers>& wait_until_all_begin();
  void start_complete();
  void finish_backward();
  void plan_by_first_pass();
  ObservedGraph observe() const;
  void check_layout(std::size_t index) const;
  void count_votes();
  void add_up_squares();
};

UsageError GradientReducer::Impl::usage_error(std::size_t index, const std::string& what) const {
  return UsageError(concat("DistributedDataParallel on rank ", group.rank(), ": parameter '",
                           names[index], "' ", what));
}

void GradientReducer::Impl::gradient_ready(std::size_t index) {
  const std::lock_guard lock(mutex);
  check_weighing();
  if (!sync) return;
  if (!in_backward) begin_backward();
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

// Gradients with and without a weight cannot be added up.
void GradientReducer::Impl::check_weighing() {
  const Weighing now = is_announced ? Weighing::kWeighted : Weighing::kPlain;
  if (weighing == Weighing::kUnknown) weighing = now;
  if (weighing == now) return;
  throw UsageError(concat("DistributedDataParallel on rank ", group.rank(),
                          ": some of the backward passes between two exchanges have a weight, and "
                          "others have none; call model.backward(loss, {.weight = n}) for all"));
}

// Weights and votes go with what tells the others that this pass begins.
void GradientReducer::Impl::begin_exchange() {
  scale = {};
  const std::string& what =
      weighing == Weighing::kWeighted ? weighted_backward_name : backward_name;
  if (weighing != Weighing::kWeighted && !vote) {
    agreement = group.begin_agreed(what);
    return;
  }
  const bool is_plain = weighing == Weighing::kPlain;
  const double own_weight = is_plain ? (vote->has_data ? 1 : 0) : weight;
  agreement = group.begin_agreed(what, {{own_weight, vote ? vote->own : 0.0}});
  scale = GradientScale([this] {
    double total = 0;
    for (const Agreement::Numbers& of_rank : wait_until_all_begin()) total += of_rank[0];
    return total > 0 ? group.world_size() / total : 0;
  });
}

void GradientReducer::Impl::begin_backward() {
  in_backward = true;
  recorder->begin_backward();
  begin_exchange();
  has_norm = false;
  if (options.gradient_norm) exchange.sum_of_squares.zero_();
  at_end_of_backward([this] { finish_backward(); });
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
  return agreement.get();
}

void GradientReducer::Impl::start_complete() {
  while (const auto next = schedule.take_next()) {
    if (*next == 0) wait_until_all_begin();
    const auto range = recorder->starting(*next);
    exchanges[*next]->start_average(scale);
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
      exchanges[number]->finish();
    }
    recorder->end_of_exchange();
    if (options.gradient_norm) add_up_squares();
    if (vote) count_votes();
    in_backward = false;
    weighing = Weighing::kUnknown;
    weight = 0;
    if (reached) reached->clear();
    memory->close();
  }
  if (options.after_exchange) options.after_exchange();
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
  ExchangePlan plan = plan_exchanges(parameters, group, exchange, graph,
                                     {.caps = options.caps,
                                      .leave_out_unused = options.static_graph,
                                      .delayed = options.delayed,
                                      .delay_until = options.delay_until});
  recorder->plan(layout_of(plan, parameters, names, exchange));
  exchanges = std::move(plan.exchanges);
  places = std::move(plan.places);
  std::vector<std::size_t> bucket_of;
  for (const ExchangePlace& place : places) bucket_of.push_back(place.exchange);
  schedule = ExchangeSchedule(std::move(bucket_of), exchanges.size());
  is_planned = true;
  last_additions = {};
}

void GradientReducer::Impl::count_votes() {
  vote->highest = 0;
  for (const Agreement::Numbers& of_rank : agreement.get()) {
    vote->highest = std::max(*vote->highest, static_cast<int>(of_rank[1]));
  }
}

void GradientReducer::Impl::add_up_squares() {
  group.all_reduce_into(exchange.sum_of_squares, exchange.sum_of_squares);
  has_norm = true;
}

GradientReducer::GradientReducer(std::vector<at::Tensor> parameters, std::vector<std::string> names,
                                 ProcessGroup group, Options options)
    : impl_(std::make_unique<Impl>(std::move(group))) {
  impl_->parameters = std::move(parameters);
  impl_->names = std::move(names);
  impl_->options = std::move(options);
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

void GradientReducer::announce_weight(double weight) {
  const std::lock_guard lock(impl_->mutex);
  const bool has_gradients =
      std::any_of(impl_->parameters.begin(), impl_->parameters.end(),
                  [](const at::Tensor& parameter) { return parameter.grad().defined(); });
  if (!has_gradients) {  // Those that were added up were given up.
    impl_->weighing = Impl::Weighing::kUnknown;
    impl_->weight = 0;
  }
  impl_->weight += weight;
  impl_->is_announced = true;
}

void GradientReducer::end_of_weighted_pass() {
  const std::lock_guard lock(impl_->mutex);
  impl_->is_announced = false;
}

void GradientReducer::cast_vote(bool has_data, int vote) {
  const std::lock_guard lock(impl_->mutex);
  impl_->vote = Impl::Vote{.has_data = has_data, .own = vote};
}

std::optional<int> GradientReducer::withdraw_vote() {
  const std::lock_guard lock(impl_->mutex);
  const auto highest = impl_->vote ? impl_->vote->highest : std::nullopt;
  impl_->vote.reset();
  return highest;
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
