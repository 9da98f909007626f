#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/tasks/task.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::bench {

/// One way to keep the replicas of a model in step: gives the forward pass that is to be used.
/// Lifetime: keeps the model alive.
using Forward = std::function<at::Tensor(const at::Tensor& inputs)>;

/// A group of all ranks, the same for each call. Collective.
ProcessGroup group_over(const std::string& backend, const ProcessGroup& control);

/// "none": two processes that do not communicate; "lockstep-<backend>": DistributedDataParallel
/// over that backend; "onecopy-<backend>": the same with one_copy_per_machine; "c10d-<backend>":
/// PyTorch's own c10d::Reducer over it. Collective. Errors: UsageError for another name.
Forward make_exchange(const std::string& name, const ProcessGroup& control, const Task& task);

}  // namespace lockstep::bench
