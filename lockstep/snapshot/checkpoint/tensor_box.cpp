#include "lockstep/snapshot/checkpoint/tensor_box.h"

#include <algorithm>
#include <array>
#include <random>

#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

/// Of a box that lies within a shape that fits 63 bits.
std::int64_t elements_of(const TensorBox& box) {
  std::int64_t elements = 1;
  for (const std::int64_t size : box.sizes) elements *= size;
  return elements;
}

/// 2^61 - 1.
constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;

std::uint64_t multiply(std::uint64_t a, std::uint64_t b) {
  __extension__ using Product = unsigned __int128;
  return static_cast<std::uint64_t>(static_cast<Product>(a) * b % kPrime);
}

/// Spreads the bits: the finalizer of SplitMix64.
std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

/// A random number for an index of a dimension, which no file can foresee.
std::uint64_t number_at(std::size_t dimension, std::int64_t index) {
  static const std::array<std::uint64_t, 2> keys = [] {
    std::random_device random;
    const auto key = [&] { return std::uint64_t{random()} << 32 | random(); };
    return std::array{key(), key()};
  }();
  return mixed(mixed(static_cast<std::uint64_t>(index) ^ keys[0]) + dimension * keys[1]) % kPrime;
}

/// Its signed corners, as a number below kPrime; 0 for a box without elements.
std::uint64_t corners_of(const TensorBox& box) {
  std::uint64_t product = 1;
  for (std::size_t i = 0; i < box.begin.size(); ++i) {
    const std::uint64_t begin = number_at(i, box.begin[i]);
    const std::uint64_t end = number_at(i, box.begin[i] + box.sizes[i]);
    product = multiply(product, (begin + kPrime - end) % kPrime);
  }
  return product;
}

}  // namespace

TensorBox whole_box(const std::vector<std::int64_t>& shape) {
  return {.begin = std::vector<std::int64_t>(shape.size(), 0), .sizes = shape};
}

bool lies_within(const TensorBox& box, const std::vector<std::int64_t>& shape) {
  if (box.begin.size() != shape.size() || box.sizes.size() != shape.size()) return false;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (box.begin[i] < 0 || box.sizes[i] < 0 || box.begin[i] > shape[i] ||
        box.sizes[i] > shape[i] - box.begin[i]) {
      return false;
    }
  }
  return true;
}

std::optional<std::int64_t> element_count(const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  bool is_empty = false;
  for (const std::int64_t size : shape) {
    is_empty |= size == 0;
    if (size < 0 || __builtin_mul_overflow(elements, std::max<std::int64_t>(size, 1), &elements)) {
      return std::nullopt;
    }
  }
  return is_empty ? 0 : elements;
}

std::optional<TensorBox> intersection(const TensorBox& a, const TensorBox& b) {
  TensorBox both;
  for (std::size_t i = 0; i < a.begin.size(); ++i) {
    const std::int64_t begin = std::max(a.begin[i], b.begin[i]);
    const std::int64_t end = std::min(a.begin[i] + a.sizes[i], b.begin[i] + b.sizes[i]);
    if (begin >= end) return std::nullopt;
    both.begin.push_back(begin);
    both.sizes.push_back(end - begin);
  }
  return both;
}

// The signed corners of a box (the product over the dimensions of "where it begins" minus "where it
// ends") determine which elements are in it; so boxes tile a shape exactly if their corners sum up
// to those of the shape. Corners are many, so each index becomes a random number: by Schwartz and
// Zippel the sums of other corners are equal with a probability of at most dimensions / 2^61.
bool tile_the_shape(const std::vector<TensorBox>& boxes, const std::vector<std::int64_t>& shape) {
  std::uint64_t sum = 0;
  for (const TensorBox& box : boxes) sum = (sum + corners_of(box)) % kPrime;
  return sum == corners_of(whole_box(shape));
}

std::optional<TensorBox> rows_of_part(const std::vector<std::int64_t>& shape, std::int64_t parts,
                                      std::int64_t index) {
  TensorBox box = whole_box(shape);
  if (shape.empty()) return index == 0 ? std::optional(box) : std::nullopt;
  const std::int64_t each = shape[0] / parts;
  const std::int64_t more = shape[0] % parts;
  box.begin[0] = index * each + std::min(index, more);
  box.sizes[0] = each + (index < more ? 1 : 0);
  // A tensor without elements has one part all the same, so that it is known by its shape.
  if (std::ranges::find(shape, 0) != shape.end()) {
    return index == 0 ? std::optional(whole_box(shape)) : std::nullopt;
  }
  return box.sizes[0] > 0 ? std::optional(box) : std::nullopt;
}

std::vector<TensorBox> row_blocks(const TensorBox& box, std::int64_t element_bytes,
                                  std::int64_t most_bytes) {
  const std::int64_t elements = elements_of(box);
  if (box.sizes.empty() || elements == 0) return {box};
  const std::int64_t row_bytes = elements / box.sizes[0] * element_bytes;
  const std::int64_t rows = std::max<std::int64_t>(1, most_bytes / row_bytes);
  std::vector<TensorBox> blocks;
  for (std::int64_t row = 0; row < box.sizes[0]; row += rows) {
    TensorBox block = box;
    block.begin[0] += row;
    block.sizes[0] = std::min(rows, box.sizes[0] - row);
    blocks.push_back(std::move(block));
  }
  return blocks;
}

std::string box_text(const TensorBox& box) {
  std::string text = "[";
  for (std::size_t i = 0; i < box.begin.size(); ++i) {
    text += concat(i == 0 ? "" : ", ", box.begin[i], ":", box.begin[i] + box.sizes[i]);
  }
  return text + "]";
}

}  // namespace lockstep::inline internal
