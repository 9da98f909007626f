#include "lockstep/ddp/exchange/exchange_recorder.h"

#include <utility>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/text.h"

namespace lockstep::inline internal {

ExchangeRecorder::Range::Range(const std::string& name, Instant* end) : end_(end) {
  if (auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE)) {
    range_.emplace(std::move(*callbacks));
    range_->before(std::string_view(name));
  }
}

ExchangeRecorder::Range::~Range() {
  if (end_ != nullptr) *end_ = now();
}

void ExchangeRecorder::plan(std::vector<BucketLayout> layout) {
  layout_ = std::move(layout);
  times_.resize(layout_.size());
  names_.clear();
  for (std::size_t number = 0; number < layout_.size(); ++number) {
    const std::string what = concat(name_of(layout_[number].kind), " ", number, " (",
                                    size_text(static_cast<double>(layout_[number].bytes)), ")");
    names_.push_back(
        {"lockstep::fill " + what, "lockstep::start " + what, "lockstep::wait for " + what});
  }
}

void ExchangeRecorder::begin_backward() {
  started_ = complete_ = 0;
  if (!measure_) return;
  for (Times& times : times_) times.complete.reset();
  began_ = now();
}

ExchangeRecorder::Range ExchangeRecorder::filling(std::size_t exchange) {
  return {names_[exchange].fill, measure_ ? &times_[exchange].ready : nullptr};
}

ExchangeRecorder::Range ExchangeRecorder::starting(std::size_t exchange) {
  started_ = exchange + 1;
  if (measure_) times_[exchange].started = now();
  times_[exchange].complete.reset();  // Where its plan was changed it starts again.
  return {names_[exchange].start, nullptr};
}

ExchangeRecorder::Range ExchangeRecorder::finishing(std::size_t exchange) {
  if (!measure_) return {names_[exchange].finish, nullptr};
  times_[exchange].wait_began = now();
  return {names_[exchange].finish, &times_[exchange].wait_ended};
}

void ExchangeRecorder::look(const std::vector<std::unique_ptr<GradientExchange>>& exchanges) {
  if (!measure_) return;
  while (complete_ < started_ && exchanges[complete_]->is_averaged()) {
    times_[complete_++].complete = now();
  }
}

void ExchangeRecorder::end_of_autograd() {
  if (measure_) autograd_ended_ = now();
}

void ExchangeRecorder::end_of_exchange() {
  if (!measure_) return;
  if (!report_) report_.emplace();
  report_->buckets.resize(times_.size());
  report_->backward = autograd_ended_ - began_;
  report_->exchanged = now() - began_;
  for (std::size_t number = 0; number < times_.size(); ++number) {
    const Times& times = times_[number];
    report_->buckets[number] = {.bytes = layout_[number].bytes,
                                .ready = times.ready - began_,
                                .started = times.started - began_,
                                .complete = times.complete.value_or(times.wait_ended) - began_,
                                .waited = times.wait_ended - times.wait_began};
  }
  add_up(*report_);
}

}  // namespace lockstep::inline internal
