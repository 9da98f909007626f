#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace lockstep::inline internal {

/// The order in which a pass gathers units, expected to be that of the pass before. A value.
class GatherOrder {
 public:
  void begin_pass();
  /// Notes that a unit is gathered. Returns the unit that comes next, if this pass has gathered
  /// what the one before did until here.
  std::optional<std::size_t> next_after(std::size_t unit);

 private:
  std::vector<std::size_t> before_;
  std::vector<std::size_t> now_;
  bool is_as_before_ = false;
};

}  // namespace lockstep::inline internal
