#pragma once

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

/// Small collectives on host data. All work without a group, for a job of one process.
namespace lockstep::inline internal {

int group_rank(const ProcessGroup& group);
int group_world_size(const ProcessGroup& group);

/// Every rank's `tensor`, a CPU tensor of the same shape and dtype everywhere, in rank order.
std::vector<at::Tensor> gather_from_all(const ProcessGroup& group, const at::Tensor& tensor);

/// The ranks that say they have failed. Collective.
std::vector<int> failed_ranks(const ProcessGroup& group, bool has_failed);

/// Runs `action` on this rank and returns when it succeeded on every rank. Errors: what `action`
/// threw; where it threw nothing, PeerFailed naming the ranks on which it failed and `operation`.
void run_on_all(const ProcessGroup& group, const std::string& operation,
                const std::function<void()>& action);

}  // namespace lockstep::inline internal
