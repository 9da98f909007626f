#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/reduce_op.h"

namespace lockstep::inline internal {

/// What all ranks must agree on when they make the same collective call. Compared between ranks as
/// bytes, so it holds no pointer and no padding.
struct CallSignature {
  static constexpr std::int64_t kNone = -1;
  static constexpr std::size_t kMostNameLetters = 23;

  std::array<char, 40> operation{};               ///< its name, ended by zeros
  std::array<char, kMostNameLetters + 1> name{};  ///< what the caller has named it
  std::int64_t dtype = kNone;
  std::int64_t reduce_op = kNone;
  std::int64_t root = kNone;   ///< the source or target rank
  std::int64_t numel = kNone;  ///< of one rank's share; kNone where it may differ between ranks

  CallSignature() = default;
  explicit CallSignature(const char* operation_name);
  CallSignature& of(const at::Tensor& tensor);  ///< its dtype and number of elements
  CallSignature& of(at::ScalarType type);
  CallSignature& with(ReduceOp op);
  CallSignature& at_root(int rank);
  CallSignature& named(const std::string& name);  ///< up to 23 letters

  bool operator==(const CallSignature&) const = default;
};
static_assert(std::has_unique_object_representations_v<CallSignature>);

/// "broadcast of 5 float32, root 2"
std::string describe(const CallSignature& call);

/// Given the calls of all ranks in rank order: nothing when they are equal, else the first rank
/// that differs from rank 0 and both calls.
std::optional<std::string> find_difference(std::span<const CallSignature> calls);

/// Elements that a rank's all_to_all moves, one number for each rank of the group.
struct PairCounts {
  std::span<const std::int64_t> sent;
  std::span<const std::int64_t> received;
};

/// Given the counts of all ranks in rank order: nothing when what each sends to each is what that
/// one expects, else the first pair that disagrees.
std::optional<std::string> find_difference(std::span<const PairCounts> counts);

}  // namespace lockstep::inline internal
