#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::inline internal {

/// Offsets in the memory of one model, which all ranks of a machine map, and the elements that each
/// rank updates:
///
///     parameters | states 0 | states 1 | states 2
///
/// Each part begins on a page and has space for every parameter; memory that is never written uses
/// none. Parameters are divided into blocks of kBlockElements. Each rank has the same number of
/// blocks as any other, or one more, in one range over all parameters. So two ranks never write to
/// one cache line, and the bits of an update do not depend on where ranges begin (see
/// update_range.h).
class CopyLayout {
 public:
  static constexpr std::int64_t kBlockElements = 64;
  /// Maximum number of tensors that an optimizer keeps for a parameter.
  static constexpr std::size_t kStates = 3;

  struct Item {
    std::int64_t elements = 0;
    std::int64_t element_bytes = 0;
  };
  /// A range of elements of one parameter.
  struct Part {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t size() const { return end - begin; }
  };

  CopyLayout(std::vector<Item> items, int ranks);

  std::size_t size() const { return items_.size(); }
  int ranks() const { return ranks_; }
  std::uint64_t bytes() const { return bytes_; }

  std::uint64_t parameter(std::size_t index) const { return offsets_[index]; }
  /// A state has space for elements of at least 4 bytes: that of a bfloat16 parameter may be
  /// float32.
  std::uint64_t state(std::size_t index, std::size_t k) const {
    return state_offsets_[index] + k * state_bytes_;
  }

  /// The elements of the parameter that a rank updates; empty: none.
  Part part(std::size_t index, int rank) const;

 private:
  std::vector<Item> items_;
  int ranks_;
  std::vector<std::int64_t> first_blocks_;  ///< of each parameter, and the number of all
  std::vector<std::uint64_t> offsets_;
  std::vector<std::uint64_t> state_offsets_;  ///< of state 0
  std::uint64_t state_bytes_ = 0;             ///< of all states of one number
  std::uint64_t bytes_ = 0;
};

}  // namespace lockstep::inline internal
