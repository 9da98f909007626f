#include <algorithm>

#include <ATen/ops/count_nonzero.h>

#include "diagnose/capture/recent_calls.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/agreement.h"
#include "lockstep/comm/internal/native_collectives.h"
#include "lockstep/ddp/exchange/gradient_view.h"
#include "lockstep/ddp/internal/error_context.h"
#include "lockstep/ddp/internal/gradient_reducer.h"

namespace lockstep::inline internal {

UsageError GradientReducer::usage_error(std::size_t index, const std::string& what) const {
  return UsageError(concat("DistributedDataParallel on rank ", group_.rank(), ": parameter '",
                           names_[index], "' ", what));
}

// Whether .grad keeps its memory after this pass: the average is copied to it, or later passes add
// to it, in place, and so to whatever else lies there.
bool GradientReducer::keeps_memory(std::size_t index) const {
  return !sync_ || group_.world_size() == 1 || !options_.gradient_as_bucket_view ||
         parameters_[index].device() != group_.device();
}

void GradientReducer::gradient_ready(std::size_t index, const at::Tensor& arrived) {
  const MutexLock lock(mutex_);
  add_weight(WeightedPass::current());
  if (keeps_memory(index)) replace_alias(parameters_[index], arrived);
  if (!sync_ && phase_ == Phase::kExchanges) {
    throw usage_error(index,
                      "got a gradient under no_sync() while those of a pass before it are "
                      "exchanged; run the pass after the backward() before it has returned");
  }
  if (!sync_) return note_last_gradient(index);
  if (phase_ == Phase::kNone) {
    begin_exchange();
    tell_end_of_backward(*this);
  }
  if (plan_.one_copy) {
    phase_ = Phase::kExchanges;
    return;
  }
  if (phase_ != Phase::kExchanges) begin_backward();
  if (!is_reached(index)) used_elsewhere_[index] = true;
  if (!is_planned_) {
    ++additions_[index];
    last_additions_.push_back(index);
    return;
  }
  switch (schedule_.arrive(index)) {
    case ExchangeSchedule::Arrival::kPart:
      return;
    case ExchangeSchedule::Arrival::kComplete:
    case ExchangeSchedule::Arrival::kMore:
      fill(index, arrived);
      start_complete();
      return recorder_.look(planned_.exchanges);
    case ExchangeSchedule::Arrival::kLate:
      throw usage_error(
          index,
          "got another gradient after its bucket was exchanged: more than in the first backward "
          "pass, or, with find_unused_parameters, one that the outputs of forward do not reach; if "
          "a backward pass failed, wrap the module again");
    case ExchangeSchedule::Arrival::kNotExchanged:
      throw usage_error(index,
                        "got a gradient that no rank had in the first backward pass; if the graph "
                        "changes, leave out static_graph");
  }
}

void GradientReducer::add_weight(const WeightedPass::Facts* pass) {
  if (pass != nullptr && pass->number != own_pass_ && !pass->is_in_loss) {
    throw UsageError(
        concat("DistributedDataParallel on rank ", group_.rank(),
               ": a weighted backward pass of a float16 or bfloat16 loss reaches the "
               "parameters of two wrapped modules; make the loss of float32 operations "
               "on what they return in float32"));
  }
  if (weight_.add(pass)) return;
  throw UsageError(concat("DistributedDataParallel on rank ", group_.rank(),
                          ": some of the backward passes between two exchanges have a weight, and "
                          "others have none; call model.backward(loss, {.weight = n}) for all"));
}

// Gradients that the program has dropped, or set to zero, since they were added up. Passes that
// reached nothing left none that could be.
void GradientReducer::forget_what_was_given_up() {
  if (last_gradient_ && !is_untouched(*last_gradient_) && !has_gradients()) forget_passes();
}

void GradientReducer::note_last_gradient(std::size_t index) {
  const at::Tensor& gradient = parameters_[index].grad();
  const WeightedPass::Facts* const pass = WeightedPass::current();
  last_gradient_ = {.index = index,
                    .tensor = decltype(LastGradient::tensor)(gradient.getIntrusivePtr()),
                    .version = gradient._version(),
                    .pass = pass != nullptr ? pass->number : 0};
}

bool GradientReducer::is_untouched(const LastGradient& gradient) const {
  const at::Tensor& now = parameters_[gradient.index].grad();
  return now.defined() && now.unsafeGetTensorImpl() == gradient.tensor._unsafe_get_target() &&
         now._version() == gradient.version;
}

void GradientReducer::forget_passes() {
  weight_.forget();
  last_gradient_.reset();
}

bool GradientReducer::has_gradients() const {
  return std::any_of(parameters_.begin(), parameters_.end(), [](const at::Tensor& parameter) {
    const at::Tensor& gradient = parameter.grad();
    // Of one copy per machine: a gradient that the copy holds.
    if (!gradient.defined() || gradient.is_meta()) return false;
    return at::count_nonzero(gradient.is_sparse() ? gradient._values() : gradient)
               .item<std::int64_t>() > 0;
  });
}

const std::string& GradientReducer::name_of_pass() const {
  if (!weight_.is_weighted()) return backward_name_;
  return weight_.unit() ? backward_with_units_name_ : weighted_backward_name_;
}

// Weights and votes go with what tells the others that this pass begins.
void GradientReducer::begin_exchange() {
  const auto numbers = weight_.to_tell();
  agreement_ = begin_agreed(group_, name_of_pass(), numbers);
  scale_ =
      numbers ? GradientScale([this]() LOCKSTEP_REQUIRES(
                                  mutex_) { return GradientWeight::scale(wait_until_all_begin()); },
                              weight_.unit())
              : GradientScale();
  phase_ = Phase::kToldOthers;
}

// A weight counts with the gradients of its pass, of which there are none.
void GradientReducer::end_failed_pass(const GradientWeight& before) {
  const bool has_come =
      phase_ == Phase::kExchanges || (last_gradient_ && last_gradient_->pass == own_pass_);
  if (has_come) return;
  weight_ = before;
  phase_ = Phase::kNone;
}

void GradientReducer::begin_backward() {
  phase_ = Phase::kExchanges;
  recorder_.begin_backward();
  has_norm_ = false;
  if (options_.gradient_norm) exchange_.sum_of_squares.zero_();
  if (!is_planned_) return;
  expected_ = additions_;
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    const bool may_come = is_reached(index) || used_elsewhere_[index];
    if (!may_come) {
      expected_[index] = 0;
    } else if (expected_[index] == 0 && !options_.static_graph) {
      expected_[index] = 1;  // not in the first pass, but the graph may have changed
    }
  }
  schedule_.begin(expected_);
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    if (expected_[index] == 0 && planned_.places[index].exchange != ExchangeSchedule::kNoBucket)
      fill(index);
  }
  start_complete();
}

void GradientReducer::fill(std::size_t index, const at::Tensor& arrived) {
  check_layout(index);
  const ExchangePlace& place = planned_.places[index];
  const auto range = recorder_.filling(place.exchange);
  planned_.exchanges[place.exchange]->fill(place.position, scale_, arrived);
}

// Nothing is exchanged before all ranks have begun the same.
const std::vector<Agreement::Numbers>& GradientReducer::wait_until_all_begin() {
  std::optional<StepTimer::Guard> waiting;
  if (options_.step_timer) waiting.emplace(*options_.step_timer, StepPhase::kExchange);
  try {
    return agreement_.get();
  } catch (const Error&) {
    rethrow_with_context(concat("this rank begins ", backward_name_));
  }
}

// Which part of the gradients: "bucket 2: fc.weight … fc2.bias".
std::string GradientReducer::about(std::size_t exchange_number) const {
  const BucketLayout& part = recorder_.layout()[exchange_number];
  std::string text =
      concat(name_of(part.kind), " ", exchange_number, ": ", part.parameters.front());
  if (part.parameters.size() > 1) text += concat(" … ", part.parameters.back());
  return text;
}

std::string GradientReducer::context(std::size_t exchange_number) const {
  return concat("this rank is in ", backward_name_, ", ", abouts_[exchange_number]);
}

void GradientReducer::start_complete() {
  while (const auto next = schedule_.take_next()) {
    if (*next == 0) wait_until_all_begin();
    start(*next);
  }
}

void GradientReducer::start(std::size_t exchange_number) {
  const auto range = recorder_.starting(exchange_number);
  const CallsAbout about(abouts_[exchange_number]);
  try {
    planned_.exchanges[exchange_number]->start_average(scale_);
  } catch (const Error&) {
    rethrow_with_context(context(exchange_number));
  }
}

void GradientReducer::finish(std::size_t exchange_number) {
  const auto range = recorder_.finishing(exchange_number);
  const CallsAbout about(abouts_[exchange_number]);
  try {
    planned_.exchanges[exchange_number]->finish();
  } catch (const Error&) {
    rethrow_with_context(context(exchange_number));
  }
}

void GradientReducer::finish_backward() {
  {
    const MutexLock lock(mutex_);
    if (plan_.one_copy) {
      plan_.one_copy->hold_all(scale_);
      has_norm_ = false;
    } else {
      exchange_at_end();
    }
    phase_ = Phase::kNone;
    forget_passes();
    if (reached_) reached_->clear();
    memory_->close();
  }
  if (plan_.after_exchange) plan_.after_exchange();
}

// All that was not exchanged while autograd ran.
void GradientReducer::exchange_at_end() {
  if (phase_ != Phase::kExchanges) begin_backward();  // A pass that reached nothing.
  recorder_.end_of_autograd();
  recorder_.look(planned_.exchanges);
  if (!is_planned_) {
    wait_until_all_begin();
    plan_by_first_pass();
    schedule_.begin(std::vector<int>(parameters_.size(), 1));
  }
  for (const std::size_t index : schedule_.complete_all()) fill(index);
  start_complete();
  if (options_.step_timer) options_.step_timer->arrive();
  note_unreached();
  for (std::size_t number = 0; number < planned_.exchanges.size(); ++number) finish(number);
  settle_unreached();
  recorder_.end_of_exchange();
  if (options_.gradient_norm) add_up_squares();
  weight_.count_votes(agreement_);
}

void GradientReducer::add_up_squares() {
  all_reduce_into(group_, exchange_.sum_of_squares, exchange_.sum_of_squares);
  has_norm_ = true;
}

}  // namespace lockstep::inline internal
