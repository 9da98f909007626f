#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace lockstep {

/// How the gradients of a bucket are exchanged.
enum class BucketKind : std::uint8_t {
  kBucket,          ///< copied into one flat tensor and all-reduced
  kLargeGradient,   ///< one gradient, averaged in place in shared memory
  kSparseGradient,  ///< one sparse gradient: all ranks' rows are gathered
  kCommHook,        ///< copied into one flat tensor and averaged by a CommHook
  kNotExchanged,    ///< not exchanged: a group of one rank
};

/// "bucket", "large gradient", "sparse gradient", "comm hook bucket" or "own gradients".
const char* name_of(BucketKind kind);

/// Gradients that are exchanged together.
struct BucketLayout {
  /// How they are exchanged.
  BucketKind kind = BucketKind::kBucket;
  /// Names of the parameters.
  std::vector<std::string> parameters;
  /// Dtype in which they are exchanged, or passed to the hook.
  at::ScalarType dtype = at::kFloat;
  /// Size of the gradients in that dtype; of a sparse gradient, its size as a dense one.
  std::int64_t bytes = 0;
};

/// When the gradients of one backward pass were exchanged, on this rank. Times are since the first
/// gradient was ready.
struct ExchangeReport {
  /// All times are in ns.
  using Time = std::chrono::nanoseconds;
  /// Times of one bucket.
  struct Bucket {
    std::int64_t bytes = 0;
    Time ready{};     ///< its last gradient was ready
    Time started{};   ///< its exchange began: it and the buckets before it were ready, and all
                      ///< ranks had begun backward
    Time complete{};  ///< its average was noticed: when the next gradient was ready, or in a wait
    Time waited{};    ///< how long backward waited at its end until each .grad held the average
  };
  /// In the order of bucket_layout().
  std::vector<Bucket> buckets;
  std::int64_t bytes = 0;  ///< of all buckets
  Time backward{};         ///< autograd ended
  Time exchanged{};        ///< every .grad held the average
  Time in_flight{};        ///< how long at least one exchange ran
  Time waited{};           ///< sum over all buckets
  /// The part of in_flight before autograd ended, 0 to 1: how much of the exchange backward hid.
  double overlap_ratio = 0;
};

inline namespace internal {

/// Computes the totals from `buckets` (in the order in which their exchanges began), `backward` and
/// `exchanged`. Pure.
void add_up(ExchangeReport& report);

}  // namespace internal

}  // namespace lockstep
