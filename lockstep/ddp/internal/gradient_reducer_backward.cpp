#include <algorithm>

#include <ATen/ops/count_nonzero.h>

#include "diagnose/capture/recent_calls.h"
#include "lockstep/comm/internal/agreement.h"
#include "lockstep/comm/internal/native_collectives.h"
#include "lockstep/ddp/exchange/gradient_ownership.h"
#include "lockstep/ddp/internal/end_of_backward.h"
#include "lockstep/ddp/internal/error_context.h"
#include "lockstep/ddp/internal/gradient_reducer_impl.h"

namespace lockstep::inline internal {

UsageError GradientReducer::Impl::usage_error(std::size_t index, const std::string& what) const {
  return UsageError(concat("DistributedDataParallel on rank ", group.rank(), ": parameter '",
                           names[index], "' ", what));
}

// Whether .grad keeps its memory after this pass: the average is copied to it, or later passes add
// to it, in place, and so to whatever else lies there.
bool GradientReducer::Impl::keeps_memory(std::size_t index) const {
  return !sync || group.world_size() == 1 || !options.gradient_as_bucket_view ||
         parameters[index].device() != group.device();
}

void GradientReducer::Impl::gradient_ready(std::size_t index, const at::Tensor& arrived) {
  const std::lock_guard lock(mutex);
  add_weight(WeightedPass::current());
  if (keeps_memory(index)) replace_alias(parameters[index], arrived);
  if (!sync) return note_last_gradient(index);
  if (phase == Phase::kNone) {
    begin_exchange();
    at_end_of_backward([this] { finish_backward(); });
  }
  if (phase != Phase::kExchanges) begin_backward();
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
      fill(index, arrived);
      start_complete();
      return recorder->look(planned.exchanges);
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
  if (pass != nullptr && pass->number != own_pass && !pass->is_in_loss) {
    throw UsageError(
        concat("DistributedDataParallel on rank ", group.rank(),
               ": a weighted backward pass of a float16 or bfloat16 loss reaches the "
               "parameters of two wrapped modules; make the loss of float32 operations "
               "on what they return in float32"));
  }
  if (weight.add(pass)) return;
  throw UsageError(concat("DistributedDataParallel on rank ", group.rank(),
                          ": some of the backward passes between two exchanges have a weight, and "
                          "others have none; call model.backward(loss, {.weight = n}) for all"));
}

// Gradients that the program has dropped, or set to zero, since they were added up. Passes that
// reached nothing left none that could be.
void GradientReducer::Impl::forget_what_was_given_up() {
  if (last_gradient && !is_untouched(*last_gradient) && !has_gradients()) forget_passes();
}

void GradientReducer::Impl::note_last_gradient(std::size_t index) {
  const at::Tensor& gradient = parameters[index].grad();
  const WeightedPass::Facts* const pass = WeightedPass::current();
  last_gradient = {.index = index,
                   .tensor = decltype(LastGradient::tensor)(gradient.getIntrusivePtr()),
                   .version = gradient._version(),
                   .pass = pass != nullptr ? pass->number : 0};
}

bool GradientReducer::Impl::is_untouched(const LastGradient& gradient) const {
  const at::Tensor& now = parameters[gradient.index].grad();
  return now.defined() && now.unsafeGetTensorImpl() == gradient.tensor._unsafe_get_target() &&
         now._version() == gradient.version;
}

void GradientReducer::Impl::forget_passes() {
  weight.forget();
  last_gradient.reset();
}

bool GradientReducer::Impl::has_gradients() const {
  return std::any_of(parameters.begin(), parameters.end(), [](const at::Tensor& parameter) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) return false;
    return at::count_nonzero(gradient.is_sparse() ? gradient._values() : gradient)
               .item<std::int64_t>() > 0;
  });
}

const std::string& GradientReducer::Impl::name_of_pass() const {
  if (!weight.is_weighted()) return backward_name;
  return weight.unit() ? backward_with_units_name : weighted_backward_name;
}

// Weights and votes go with what tells the others that this pass begins.
void GradientReducer::Impl::begin_exchange() {
  const auto numbers = weight.to_tell();
  agreement = begin_agreed(group, name_of_pass(), numbers);
  scale = numbers ? GradientScale([this] { return GradientWeight::scale(wait_until_all_begin()); },
                                  weight.unit())
                  : GradientScale();
  phase = Phase::kToldOthers;
}

// A weight counts with the gradients of its pass, of which there are none.
void GradientReducer::Impl::end_failed_pass(const GradientWeight& before) {
  const bool has_come =
      phase == Phase::kExchanges || (last_gradient && last_gradient->pass == own_pass);
  if (has_come) return;
  weight = before;
  phase = Phase::kNone;
}

void GradientReducer::Impl::begin_backward() {
  phase = Phase::kExchanges;
  recorder->begin_backward();
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
    if (expected[index] == 0 && planned.places[index].exchange != ExchangeSchedule::kNoBucket)
      fill(index);
  }
  start_complete();
}

void GradientReducer::Impl::fill(std::size_t index, const at::Tensor& arrived) {
  check_layout(index);
  const ExchangePlace& place = planned.places[index];
  const auto range = recorder->filling(place.exchange);
  planned.exchanges[place.exchange]->fill(place.position, scale, arrived);
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

// Which part of the gradients: "bucket 2: fc.weight … fc2.bias".
std::string GradientReducer::Impl::about(std::size_t exchange_number) const {
  const BucketLayout& part = recorder->layout()[exchange_number];
  std::string text =
      concat(name_of(part.kind), " ", exchange_number, ": ", part.parameters.front());
  if (part.parameters.size() > 1) text += concat(" … ", part.parameters.back());
  return text;
}

std::string GradientReducer::Impl::context(std::size_t exchange_number) const {
  return concat("this rank is in ", backward_name, ", ", abouts[exchange_number]);
}

void GradientReducer::Impl::start_complete() {
  while (const auto next = schedule.take_next()) {
    if (*next == 0) wait_until_all_begin();
    start(*next);
  }
}

void GradientReducer::Impl::start(std::size_t exchange_number) {
  const auto range = recorder->starting(exchange_number);
  const CallsAbout about(abouts[exchange_number]);
  try {
    planned.exchanges[exchange_number]->start_average(scale);
  } catch (const Error&) {
    rethrow_with_context(context(exchange_number));
  }
}

void GradientReducer::Impl::finish(std::size_t exchange_number) {
  const auto range = recorder->finishing(exchange_number);
  const CallsAbout about(abouts[exchange_number]);
  try {
    planned.exchanges[exchange_number]->finish();
  } catch (const Error&) {
    rethrow_with_context(context(exchange_number));
  }
}

void GradientReducer::Impl::finish_backward() {
  {
    const std::lock_guard lock(mutex);
    if (phase != Phase::kExchanges) begin_backward();  // A pass that reached nothing.
    recorder->end_of_autograd();
    recorder->look(planned.exchanges);
    if (!is_planned) {
      wait_until_all_begin();
      plan_by_first_pass();
      schedule.begin(std::vector<int>(parameters.size(), 1));
    }
    for (const std::size_t index : schedule.complete_all()) fill(index);
    start_complete();
    if (options.step_timer) options.step_timer->arrive();
    note_unreached();
    for (std::size_t number = 0; number < planned.exchanges.size(); ++number) finish(number);
    settle_unreached();
    recorder->end_of_exchange();
    if (options.gradient_norm) add_up_squares();
    weight.count_votes(agreement);
    phase = Phase::kNone;
    forget_passes();
    if (reached) reached->clear();
    memory->close();
  }
  if (plan.after_exchange) plan.after_exchange();
}

void GradientReducer::Impl::add_up_squares() {
  all_reduce_into(group, exchange.sum_of_squares, exchange.sum_of_squares);
  has_norm = true;
}

}  // namespace lockstep::inline internal
