#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

/// Small collectives on host data.
namespace lockstep::inline internal {

/// Returns rank `source`'s text on every rank. `name`: of the calls, for errors; empty: their own.
/// Collective.
/// Errors: as Work::wait.
std::string broadcast_text(const ProcessGroup& group, const std::string& text, int source,
                           const std::string& name = {});

/// Checks that all ranks have the same text, "name=value name=value …". Collective.
/// Errors: if texts differ, the same UsageError on all ranks, with `operation`, the words that only
/// rank 0 and only the first differing rank have, and `cure`, what to do; as Work::wait.
void check_same_text(const ProcessGroup& group, const std::string& operation,
                     const std::string& text, const std::string& cure = "give all ranks the same");

/// Rank and world size; 0 and 1 without a group, as in a job of one process. The collectives below
/// work without a group too.
int group_rank(const ProcessGroup& group);
int group_world_size(const ProcessGroup& group);

/// Every rank's `tensor`, on the CPU, by rank; equal shapes and dtypes. Collective.
std::vector<at::Tensor> gather_from_all(const ProcessGroup& group, const at::Tensor& tensor);

/// Every rank's `row`, by rank; rows of equal length. Collective.
std::vector<std::vector<std::int64_t>> gather_rows(const ProcessGroup& group,
                                                   const std::vector<std::int64_t>& row);

/// The ranks that pass `has_failed`. Collective.
std::vector<int> failed_ranks(const ProcessGroup& group, bool has_failed);

/// Runs `action` on this rank and returns when it succeeded on every rank.
/// Errors: what `action` threw; if it threw nothing, PeerFailed with the ranks on which it failed
/// and `operation`.
void run_on_all(const ProcessGroup& group, const std::string& operation,
                const std::function<void()>& action);

}  // namespace lockstep::inline internal
