#pragma once

#include <cstddef>
#include <vector>

namespace lockstep::inline internal {

/// What becomes of the samples left over when a dataset does not divide by the number of replicas.
enum class Tail {
  kPad,   ///< the order starts over until every rank has as many: some samples count twice
  kDrop,  ///< they are left out, so that every rank has as many
  kKeep,  ///< the first ranks have one more: every sample exactly once
};

/// One rank's part of a dataset.
struct Shard {
  int num_replicas = 1;
  int rank = 0;
  Tail tail = Tail::kPad;
};

/// How many of `dataset_size` samples the shard has. Needs 0 <= rank < num_replicas.
std::size_t shard_size(std::size_t dataset_size, const Shard& shard);

/// The shard's samples: `order` strided by rank, order[rank], order[rank + num_replicas], …
std::vector<std::size_t> shard_indices(const std::vector<std::size_t>& order, const Shard& shard);

}  // namespace lockstep::inline internal
