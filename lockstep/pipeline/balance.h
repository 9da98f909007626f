#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

/// Cuts layers of these costs into so many stages, each of one layer or more in a row, so that the
/// dearest stage costs as little as can be, and the others are as equal as that allows. Gives the
/// first layer of each stage but the first; the same on all machines.
/// Errors: UsageError for more stages than layers and for a cost that is negative or no number.
std::vector<std::int64_t> balance_stages(const std::vector<double>& costs, int stages);

}  // namespace lockstep
