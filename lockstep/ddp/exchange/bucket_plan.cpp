#include "lockstep/ddp/exchange/bucket_plan.h"

#include <algorithm>
#include <map>

#include "lockstep/base/internal/check.h"

namespace lockstep::inline internal {
namespace {

struct OpenBucket {
  Bucket indices;
  std::int64_t bytes = 0;
  std::size_t last_position = 0;  // position in the order of the gradient that completes it
};

}  // namespace

std::vector<Bucket> plan_buckets(const std::vector<GradientShape>& shapes,
                                 const std::vector<std::size_t>& order, const BucketCaps& caps) {
  LOCKSTEP_ASSERT(!caps.empty());
  std::vector<OpenBucket> closed;
  std::map<int, OpenBucket> open;  // by kind
  std::size_t capped = 0;          // how many buckets have come to their cap
  for (std::size_t position = 0; position < order.size(); ++position) {
    const std::size_t index = order[position];
    const GradientShape& shape = shapes.at(index);
    if (shape.alone) {
      closed.push_back({.indices = {index}, .bytes = shape.bytes, .last_position = position});
      continue;
    }
    OpenBucket& bucket = open[shape.kind];
    bucket.indices.push_back(index);
    bucket.bytes += shape.bytes;
    bucket.last_position = position;
    if (bucket.bytes >= caps[std::min(capped, caps.size() - 1)]) {
      closed.push_back(std::move(bucket));
      open.erase(shape.kind);
      ++capped;
    }
  }
  for (auto& [kind, bucket] : open) closed.push_back(std::move(bucket));
  std::sort(closed.begin(), closed.end(), [](const OpenBucket& left, const OpenBucket& right) {
    return left.last_position < right.last_position;
  });

  std::vector<Bucket> buckets;
  for (OpenBucket& bucket : closed) buckets.push_back(std::move(bucket.indices));
  return buckets;
}

}  // namespace lockstep::inline internal
