#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// Every rank's `row`, by rank; rows are of one length. Collective.
std::vector<std::vector<std::int64_t>> gather_rows(const ProcessGroup& group,
                                                   const std::vector<std::int64_t>& row);

}  // namespace lockstep::inline internal
