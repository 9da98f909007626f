#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// Rectangular parts of tensors: how shards that were saved become those that are wanted.
namespace lockstep::inline internal {

/// The elements from `begin` on, `sizes` of them in each dimension.
struct TensorBox {
  std::vector<std::int64_t> begin;
  std::vector<std::int64_t> sizes;

  bool operator==(const TensorBox&) const = default;
};

TensorBox whole_box(const std::vector<std::int64_t>& shape);

/// Not negative, of the shape's dimensions, and nowhere beyond it. Any numbers may be given.
bool lies_within(const TensorBox& box, const std::vector<std::int64_t>& shape);

/// The elements of a shape; nothing when they do not fit 63 bits or a dimension is negative.
/// Counted as if no dimension was zero, as LibTorch multiplies them for strides.
std::optional<std::int64_t> element_count(const std::vector<std::int64_t>& shape);

/// What both have; nothing where that is empty. Both lie within one shape.
std::optional<TensorBox> intersection(const TensorBox& a, const TensorBox& b);

/// Whether the boxes, each within the shape, cover each element of it once. Boxes without elements
/// do not count. Takes time in proportion to the pairs that share rows.
bool tile_the_shape(const std::vector<TensorBox>& boxes, const std::vector<std::int64_t>& shape);

/// The rows of dimension 0 that part `index` of `parts` gets: the first ones get one more where the
/// rows do not divide. A shape without dimensions is part 0's. Nothing for a part without elements.
std::optional<TensorBox> rows_of_part(const std::vector<std::int64_t>& shape, std::int64_t parts,
                                      std::int64_t index);

/// Blocks of whole rows, in order, of at most so many bytes where a row allows it.
std::vector<TensorBox> row_blocks(const TensorBox& box, std::int64_t element_bytes,
                                  std::int64_t most_bytes);

/// "[0:4, 2:5]", for messages.
std::string box_text(const TensorBox& box);

}  // namespace lockstep::inline internal
