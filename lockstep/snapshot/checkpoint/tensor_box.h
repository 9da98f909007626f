#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// Rectangular parts of tensors: how saved shards become requested shards.
namespace lockstep::inline internal {

/// The elements from index `begin` on, `sizes` of them per dimension.
struct TensorBox {
  std::vector<std::int64_t> begin;
  std::vector<std::int64_t> sizes;

  bool operator==(const TensorBox&) const = default;
};

/// The box of a whole tensor.
TensorBox whole_box(const std::vector<std::int64_t>& shape);

/// Whether a box is inside of a shape and has its number of dimensions. Any numbers are allowed.
bool lies_within(const TensorBox& box, const std::vector<std::int64_t>& shape);

/// The number of elements of a shape; nullopt for a negative dimension and if it does not fit 63
/// bits. Zero dimensions count as one in that check, as LibTorch multiplies them for strides.
std::optional<std::int64_t> element_count(const std::vector<std::int64_t>& shape);

/// The intersection of two of them in one shape; nullopt if empty.
std::optional<TensorBox> intersection(const TensorBox& a, const TensorBox& b);

/// Whether they cover each element of the shape, in which each lies, exactly once. Those without
/// elements are ignored. Takes time in proportion to their number and the dimensions. A wrong yes
/// has a probability below 2^-54, which no file can raise.
bool tile_the_shape(const std::vector<TensorBox>& boxes, const std::vector<std::int64_t>& shape);

/// The rows of dimension 0 that part `index` of `parts` gets; the first parts get one more if the
/// rows do not divide evenly. Part 0 gets a shape without dimensions. Nullopt for a part without
/// elements.
std::optional<TensorBox> rows_of_part(const std::vector<std::int64_t>& shape, std::int64_t parts,
                                      std::int64_t index);

/// Divides a box into blocks of whole rows, in order, of at most `most_bytes`, or one row.
std::vector<TensorBox> row_blocks(const TensorBox& box, std::int64_t element_bytes,
                                  std::int64_t most_bytes);

/// Text for error messages: "[0:4, 2:5]".
std::string box_text(const TensorBox& box);

}  // namespace lockstep::inline internal
