#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::inline internal {

/// Properties of a gradient for bucketing.
struct GradientShape {
  std::int64_t bytes = 0;
  /// Gradients of different kinds (dtype and device) never share a bucket.
  int kind = 0;
  /// It has a bucket of its own, without effect on the others.
  bool alone = false;
};

/// Sizes in bytes of the first, second, … bucket; the last is used for all further ones. A small
/// first bucket lets its exchange start early in backward. Not empty.
using BucketCaps = std::vector<std::int64_t>;

/// Indices of the parameters whose gradients are exchanged together.
using Bucket = std::vector<std::size_t>;

/// Assigns gradients to buckets in the order in which they become ready. The gradient that reaches
/// a bucket's cap closes it, so a larger one has a bucket of its own or ends one. Buckets are in
/// the order in which they are complete. `order`: indices of `shapes`, each at most once; the
/// others get no bucket.
/// Algorithm: "PyTorch Distributed" (Li et al., VLDB 2020), section 4.2.
std::vector<Bucket> plan_buckets(const std::vector<GradientShape>& shapes,
                                 const std::vector<std::size_t>& order, const BucketCaps& caps);

}  // namespace lockstep::inline internal
