#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::inline internal {

/// Collective: rank `source`'s text, on every rank. `name`: of the calls, for errors; empty:
/// theirs. Errors: as Work::wait.
std::string broadcast_text(const ProcessGroup& group, const std::string& text, int source,
                           const std::string& name = {});

/// Collective. Errors: UsageError on all ranks where their texts differ, with `operation`, rank 0's
/// text and this rank's; as Work::wait.
void check_same_text(const ProcessGroup& group, const std::string& operation,
                     const std::string& text);

/// Every rank's `row`, by rank; rows are of one length. Collective.
std::vector<std::vector<std::int64_t>> gather_rows(const ProcessGroup& group,
                                                   const std::vector<std::int64_t>& row);

}  // namespace lockstep::inline internal
