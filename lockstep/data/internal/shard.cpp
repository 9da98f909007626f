#include "lockstep/data/internal/shard.h"

#include "lockstep/base/internal/check.h"

namespace lockstep::inline internal {

std::size_t shard_size(std::size_t dataset_size, const Shard& shard) {
  LOCKSTEP_ASSERT(0 <= shard.rank && shard.rank < shard.num_replicas);
  const auto replicas = static_cast<std::size_t>(shard.num_replicas);
  const std::size_t whole = dataset_size / replicas;
  const std::size_t left_over = dataset_size % replicas;
  switch (shard.tail) {
    case Tail::kPad:
      return whole + (left_over > 0 ? 1 : 0);
    case Tail::kKeep:
      return whole + (static_cast<std::size_t>(shard.rank) < left_over ? 1 : 0);
    case Tail::kDrop:
      break;
  }
  return whole;
}

std::vector<std::size_t> shard_indices(const std::vector<std::size_t>& order, const Shard& shard) {
  std::vector<std::size_t> indices(shard_size(order.size(), shard));
  auto position = static_cast<std::size_t>(shard.rank);
  for (std::size_t& index : indices) {
    index = order[position % order.size()];  // Past the end only where the tail is padded.
    position += static_cast<std::size_t>(shard.num_replicas);
  }
  return indices;
}

}  // namespace lockstep::inline internal
