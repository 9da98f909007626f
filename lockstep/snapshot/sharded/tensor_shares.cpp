#include "lockstep/snapshot/sharded/tensor_shares.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

namespace lockstep::inline internal {

std::vector<int> plan_shares(const std::vector<std::uint64_t>& tensor_bytes,
                             std::vector<std::uint64_t> kept_bytes) {
  std::vector<std::size_t> order(tensor_bytes.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](std::size_t i) { return tensor_bytes[i]; });
  using Load = std::pair<std::uint64_t, int>;  // Bytes and rank: of equal ranks the lowest.
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (std::size_t rank = 0; rank < kept_bytes.size(); ++rank) {
    loads.emplace(kept_bytes[rank], static_cast<int>(rank));
  }
  std::vector<int> owners(tensor_bytes.size());
  for (const std::size_t i : order) {
    const auto [bytes, rank] = loads.top();
    loads.pop();
    owners[i] = rank;
    loads.emplace(bytes + tensor_bytes[i], rank);
  }
  return owners;
}

}  // namespace lockstep::inline internal
