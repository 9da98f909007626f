#include "lockstep/ddp/comm_hook.h"

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/native_collectives.h"

namespace lockstep {

void CommHook::claim() {
  if (is_claimed_) {
    throw UsageError(concat("DistributedDataParallel: comm_hook '", describe(),
                            "' is already used by another model and keeps state of its gradients; "
                            "create one hook per model"));
  }
  is_claimed_ = true;
}

std::function<void()> start_average(const ProcessGroup& group, const at::Tensor& tensor) {
  if (group.world_size() == 1) return [] {};
  tensor.div_(group.world_size());
  const Work work = all_reduce_into(group, tensor, tensor, {}, {.async_op = true});
  return [work] { work.wait(); };
}

}  // namespace lockstep
