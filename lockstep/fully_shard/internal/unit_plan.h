#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// Whether the module named `inner` is the module named `outer` or one of its submodules; the root
/// is named "".
bool is_within(const std::string& inner, const std::string& outer);

/// Which unit holds which parameter. `units`: names of modules, the root's "" among them.
/// `parameters`: of each its names, of which a shared one has several. A parameter belongs to the
/// innermost unit in which all of its names lie. A value is an index of `units`.
std::vector<std::size_t> plan_units(const std::vector<std::string>& units,
                                    const std::vector<std::vector<std::string>>& parameters);

}  // namespace lockstep::inline internal
