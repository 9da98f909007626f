#include "lockstep/data/batch_part.h"

#include <algorithm>

namespace lockstep {

SampleRange part_of(const SampleRange& batch, const BatchPart& part) {
  const std::int64_t least = batch.size / part.world_size;
  const std::int64_t left_over = batch.size % part.world_size;
  return {.begin = batch.begin + part.rank * least + std::min<std::int64_t>(part.rank, left_over),
          .size = least + (part.rank < left_over ? 1 : 0)};
}

}  // namespace lockstep
