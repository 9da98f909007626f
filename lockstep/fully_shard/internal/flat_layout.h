#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::inline internal {

/// Elements [begin, end).
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
  bool operator==(const ElementRange&) const = default;
};

/// A part of a flat tensor: elements of one parameter, or of none.
struct FlatPart {
  std::optional<std::size_t> parameter = {};
  ElementRange elements = {};  ///< in the flat tensor

  bool operator==(const FlatPart&) const = default;
};

/// Where parameters lie in one flat tensor, and which rank holds which of its elements: rank r the
/// r-th of world_size equal chunks. A value.
struct FlatLayout {
  int world_size = 1;
  std::int64_t chunk = 0;                     ///< elements that each rank holds, padding included
  std::vector<ElementRange> parameters = {};  ///< in the flat tensor, ascending

  std::int64_t total() const { return chunk * world_size; }
  /// The elements of a parameter that a rank holds, counted from the parameter's first; empty
  /// ranges begin at 0.
  ElementRange piece(int rank, std::size_t parameter) const;
  /// Where that piece begins in the rank's chunk; 0 for an empty one.
  std::int64_t place_in_chunk(int rank, std::size_t parameter) const;
  /// Elements of the flat tensor that a rank holds, without padding behind the last parameter, and
  /// those of a parameter. Where parameters begin does not depend on the number of ranks.
  ElementRange elements_of(int rank) const;
  ElementRange elements_of(int rank, std::size_t parameter) const;
  /// What lies in a range of the flat tensor, ascending and without gaps.
  std::vector<FlatPart> parts_of(ElementRange range) const;
  /// The parameter that an element of the flat tensor belongs to; of padding, the one before it.
  std::size_t parameter_at(std::int64_t element) const;
};

/// Lays parameters of so many elements one behind the other, each and each chunk from a multiple
/// of `alignment` elements on.
FlatLayout plan_flat_layout(const std::vector<std::int64_t>& elements, int world_size,
                            std::int64_t alignment);

}  // namespace lockstep::inline internal
