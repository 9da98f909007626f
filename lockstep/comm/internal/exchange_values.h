#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

/// Small collectives on host data.
namespace lockstep::inline internal {

/// Collective: rank `source`'s text, on every rank. `name`: of the calls, for errors; empty:
/// theirs. Errors: as Work::wait.
std::string broadcast_text(const ProcessGroup& group, const std::string& text, int source,
                           const std::string& name = {});

/// Collective. Errors: UsageError on all ranks where their texts differ, with `operation`, rank 0's
/// text and this rank's; as Work::wait.
void check_same_text(const ProcessGroup& group, const std::string& operation,
                     const std::string& text);

/// 0 and 1 without a group: in a job of one process, in which the collectives below work too.
int group_rank(const ProcessGroup& group);
int group_world_size(const ProcessGroup& group);

/// Every rank's `tensor`, on the CPU and by rank; of one shape and dtype on all. Collective.
std::vector<at::Tensor> gather_from_all(const ProcessGroup& group, const at::Tensor& tensor);

/// Every rank's `row`, by rank; rows are of one length. Collective.
std::vector<std::vector<std::int64_t>> gather_rows(const ProcessGroup& group,
                                                   const std::vector<std::int64_t>& row);

/// The ranks that say they have failed. Collective.
std::vector<int> failed_ranks(const ProcessGroup& group, bool has_failed);

/// Runs `action` on this rank and returns when it succeeded on every rank. Errors: what `action`
/// threw; where it threw nothing, PeerFailed naming the ranks on which it failed and `operation`.
void run_on_all(const ProcessGroup& group, const std::string& operation,
                const std::function<void()>& action);

}  // namespace lockstep::inline internal
