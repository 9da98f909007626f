#include "lockstep/fully_shard/internal/unit_plan.h"

#include <algorithm>

namespace lockstep::inline internal {

bool is_within(const std::string& inner, const std::string& outer) {
  if (outer.empty() || inner == outer) return true;
  return inner.size() > outer.size() && inner.starts_with(outer) && inner[outer.size()] == '.';
}

std::vector<std::size_t> plan_units(const std::vector<std::string>& units,
                                    const std::vector<std::vector<std::string>>& parameters) {
  std::vector<std::size_t> owners;
  for (const std::vector<std::string>& names : parameters) {
    std::size_t owner = 0;
    bool has_owner = false;
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      const bool holds_all = std::ranges::all_of(
          names, [&](const std::string& name) { return is_within(name, units[unit]); });
      if (holds_all && (!has_owner || units[unit].size() > units[owner].size())) {
        owner = unit;
        has_owner = true;
      }
    }
    owners.push_back(owner);
  }
  return owners;
}

}  // namespace lockstep::inline internal
