#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::inline internal {

/// Where the values of a logical shard go: into flat tensors, or on top of what they hold.
struct ShardTarget {
  const std::vector<at::Tensor>& flats;
  /// They hold the sum of the shard's left sibling, to which values are added.
  bool is_sum = false;

  /// `part`: of a flat tensor.
  void put_zeros(at::Tensor part) const;
  void put(at::Tensor part, const at::Tensor& value) const;
  /// Numbers of the flat tensor's dtype, from element `from` on.
  void put(std::size_t flat, std::int64_t from, const void* values, std::int64_t elements) const;
};

}  // namespace lockstep::inline internal
