#pragma once

#include <compare>
#include <cstdint>

namespace lockstep::rpc::inline internal {

/// A value that is kept on its owner: the same key on every worker.
struct RRefKey {
  std::int32_t owner = 0;    ///< rank
  std::int32_t creator = 0;  ///< rank of the worker that numbered it
  std::int64_t number = 0;

  auto operator<=>(const RRefKey&) const = default;
};

}  // namespace lockstep::rpc::inline internal
