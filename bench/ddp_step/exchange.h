#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/tasks/task.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::bench {

/// One way in which ranks train a model together. Lifetime: keeps the model alive.
struct Exchange {
  std::function<at::Tensor(const at::Tensor& inputs)> forward;
  std::vector<at::Tensor> parameters;  ///< for the optimizer
};

/// A group of all ranks, the same for each call. Collective.
ProcessGroup group_over(const std::string& backend, const ProcessGroup& control);

/// "none": two processes that do not communicate; "lockstep-<backend>": DistributedDataParallel
/// over that backend; "onecopy-<backend>": the same with one_copy_per_machine;
/// "fullyshard-<backend>": fully_shard, blocks of a GPT as units; "c10d-<backend>": PyTorch's own
/// c10d::Reducer over it. Collective. Errors: UsageError for another name.
Exchange make_exchange(const std::string& name, const ProcessGroup& control, const Task& task);

}  // namespace lockstep::bench
