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

/// What all ranks must pass equally to a collective. Compared between ranks as bytes, so it has no
/// pointers and no padding.
struct CallSignature {
  static constexpr std::int64_t kNone = -1;
  static constexpr std::size_t kMostNameLetters = 23;

  std::array<char, 40> operation{};               ///< its name, padded with zeros
  std::array<char, kMostNameLetters + 1> name{};  ///< the caller's name of the call
  std::int64_t dtype = kNone;
  std::int64_t reduce_op = kNone;
  std::int64_t root = kNone;   ///< the source or target rank
  std::int64_t numel = kNone;  ///< of one rank's part; kNone if it may differ between ranks

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

/// Compares the calls of all ranks, in rank order. Returns the first rank that differs from rank 0
/// and both calls; empty: all are equal.
std::optional<std::string> find_difference(std::span<const CallSignature> calls);

/// Number of elements that a rank sends to, and receives from, each rank in an all_to_all.
struct PairCounts {
  std::span<const std::int64_t> sent;
  std::span<const std::int64_t> received;
};

/// Compares what each rank sends with what its peer expects. Returns the first pair that differs;
/// empty: none.
std::optional<std::string> find_difference(std::span<const PairCounts> counts);

}  // namespace lockstep::inline internal
