#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace lockstep {

/// How the gradients of one or several parameters travel.
enum class BucketKind : std::uint8_t {
  kBucket,          ///< copied into one flat tensor, which is all-reduced
  kLargeGradient,   ///< one gradient, averaged where it lies in shared memory
  kSparseGradient,  ///< one sparse gradient: the rows that ranks have are gathered
  kCommHook,        ///< copied into one flat tensor, which a CommHook averages
  kNotExchanged,    ///< in a group of one rank
};

/// "bucket", "large gradient", "sparse gradient", "comm hook bucket", "own gradients".
const char* name_of(BucketKind kind);

/// What is exchanged together.
struct BucketLayout {
  BucketKind kind = BucketKind::kBucket;
  std::vector<std::string> parameters;
  /// In which they travel, or are given to the hook.
  at::ScalarType dtype = at::kFloat;
  /// Of the gradients in that dtype, of a sparse one as if it was dense.
  std::int64_t bytes = 0;
};

/// When the gradients of one backward pass were exchanged, on this rank. Times count from the
/// first gradient that backward brought.
struct ExchangeReport {
  using Time = std::chrono::nanoseconds;
  struct Bucket {
    std::int64_t bytes = 0;
    Time ready{};     ///< its last gradient was there
    Time started{};   ///< its exchange began: it was ready, so were those before it, and all ranks
                      ///< had begun backward
    Time complete{};  ///< it was seen to be averaged: on the next gradient's arrival, or by waiting
    Time waited{};    ///< at the end of backward, until each .grad was the average
  };
  /// As bucket_layout().
  std::vector<Bucket> buckets;
  std::int64_t bytes = 0;
  Time backward{};   ///< autograd was done
  Time exchanged{};  ///< every .grad was the average
  Time in_flight{};  ///< how long at least one exchange was under way
  Time waited{};     ///< of all buckets
  /// The part of in_flight that was before autograd was done, 0 to 1: how much of the exchange
  /// backward hid.
  double overlap_ratio = 0;
};

/// Works out the report's totals from its buckets, whose exchanges began in their order, and from
/// `backward` and `exchanged`. Pure.
void add_up(ExchangeReport& report);

}  // namespace lockstep
