#include "lockstep/comm/internal/machine_group.h"

#include <string>

#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/internal/backend_factory.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/os/machine/machine.h"

namespace lockstep::inline internal {

ProcessGroup machine_group(const ProcessGroup& group,
                           const std::vector<std::vector<int>>& machines) {
  ProcessGroup own;
  std::string failure;
  for (const auto& ranks : machines) {
    try {
      if (const ProcessGroup local = group.new_group(ranks, {.backend = "shm"})) own = local;
    } catch (const BackendUnavailable& error) {
      failure = concat("rank ", group.rank(), " on ", host_name(),
                       " cannot share memory with the other ranks of its machine, which groups by "
                       "machine need: ",
                       error.reason());
    }
  }
  const std::vector<int> failed = failed_ranks(group, !failure.empty());
  if (failed.empty()) return own;
  throw BackendUnavailable(broadcast_text(group, failure, failed.front()));
}

}  // namespace lockstep::inline internal
