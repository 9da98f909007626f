#include "lockstep/ddp/exchange/exchange_schedule.h"

#include "lockstep/base/internal/check.h"

namespace lockstep::inline internal {

ExchangeSchedule::ExchangeSchedule(std::vector<std::size_t> bucket_of, std::size_t bucket_count)
    : bucket_of_(std::move(bucket_of)), sizes_(bucket_count) {
  for (const std::size_t bucket : bucket_of_) {
    if (bucket != kNoBucket) ++sizes_.at(bucket);
  }
}

void ExchangeSchedule::begin(const std::vector<int>& expected) {
  LOCKSTEP_ASSERT(expected.size() == bucket_of_.size());
  missing_ = expected;
  waiting_ = sizes_;
  next_ = 0;
  for (std::size_t gradient = 0; gradient < missing_.size(); ++gradient) {
    if (bucket_of_[gradient] != kNoBucket && missing_[gradient] == 0) {
      --waiting_[bucket_of_[gradient]];
    }
  }
}

ExchangeSchedule::Arrival ExchangeSchedule::arrive(std::size_t gradient) {
  const std::size_t bucket = bucket_of_.at(gradient);
  if (bucket == kNoBucket) return Arrival::kNotExchanged;
  if (missing_[gradient] == 0) return bucket < next_ ? Arrival::kLate : Arrival::kMore;
  if (--missing_[gradient] > 0) return Arrival::kPart;
  --waiting_[bucket];
  return Arrival::kComplete;
}

std::vector<std::size_t> ExchangeSchedule::complete_all() {
  std::vector<std::size_t> completed;
  for (std::size_t gradient = 0; gradient < missing_.size(); ++gradient) {
    if (missing_[gradient] == 0 || bucket_of_[gradient] == kNoBucket) continue;
    missing_[gradient] = 0;
    --waiting_[bucket_of_[gradient]];
    completed.push_back(gradient);
  }
  return completed;
}

std::optional<std::size_t> ExchangeSchedule::take_next() {
  if (next_ == waiting_.size() || waiting_[next_] > 0) return std::nullopt;
  return next_++;
}

}  // namespace lockstep::inline internal
