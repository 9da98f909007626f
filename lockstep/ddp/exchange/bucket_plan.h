#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::inline internal {

/// What bucketing needs to know of one gradient.
struct GradientShape {
  std::int64_t bytes = 0;
  /// Gradients of different kinds (dtype and device) never share a bucket.
  int kind = 0;
  /// Has a bucket to itself, which leaves the others as they are.
  bool alone = false;
};

/// Of the first bucket, the second, …; the last holds for all after it. A small first one lets its
/// exchange start early in backward. Not empty.
using BucketCaps = std::vector<std::int64_t>;

/// Indices of the parameters whose gradients are exchanged together.
using Bucket = std::vector<std::size_t>;

/// Assigns gradients to buckets in the order in which they become ready. A bucket is closed by the
/// gradient that brings it to its cap, so one larger than the cap has a bucket of its own or ends
/// one. Buckets come in the order in which they are complete. `order` names indices of `shapes`,
/// each at most once; the others get no bucket. After "PyTorch Distributed" (Li et al., VLDB 2020),
/// section 4.2.
std::vector<Bucket> plan_buckets(const std::vector<GradientShape>& shapes,
                                 const std::vector<std::size_t>& order, const BucketCaps& caps);

}  // namespace lockstep::inline internal
