#include "lockstep/fully_shard/internal/gather_order.h"

#include <utility>

namespace lockstep::inline internal {

void GatherOrder::begin_pass() {
  before_ = std::exchange(now_, {});
  is_as_before_ = true;
}

std::optional<std::size_t> GatherOrder::next_after(std::size_t unit) {
  const std::size_t place = now_.size();
  now_.push_back(unit);
  is_as_before_ = is_as_before_ && place < before_.size() && before_[place] == unit;
  if (!is_as_before_ || place + 1 == before_.size()) return std::nullopt;
  return before_[place + 1];
}

}  // namespace lockstep::inline internal
