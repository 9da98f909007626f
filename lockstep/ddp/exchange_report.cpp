#include "lockstep/ddp/exchange_report.h"

#include <algorithm>

#include "lockstep/base/internal/check.h"

namespace lockstep {

const char* name_of(BucketKind kind) {
  switch (kind) {
    case BucketKind::kBucket:
      return "bucket";
    case BucketKind::kLargeGradient:
      return "large gradient";
    case BucketKind::kSparseGradient:
      return "sparse gradient";
    case BucketKind::kCommHook:
      return "comm hook bucket";
    case BucketKind::kNotExchanged:
      break;
  }
  return "own gradients";
}

void internal::add_up(ExchangeReport& report) {
  using Time = ExchangeReport::Time;
  report.bytes = 0;
  report.in_flight = report.waited = Time::zero();
  Time hidden{};
  Time until{};  // what has been counted
  for (const ExchangeReport::Bucket& bucket : report.buckets) {
    LOCKSTEP_ASSERT(bucket.started >= Time::zero());
    report.bytes += bucket.bytes;
    report.waited += bucket.waited;
    const Time from = std::max(bucket.started, until);
    if (bucket.complete <= from) continue;
    report.in_flight += bucket.complete - from;
    hidden += std::max(std::min(bucket.complete, report.backward) - from, Time::zero());
    until = bucket.complete;
  }
  report.overlap_ratio =
      report.in_flight > Time::zero()
          ? static_cast<double>(hidden.count()) / static_cast<double>(report.in_flight.count())
          : 0;
}

}  // namespace lockstep
