#include "lockstep/recovery/internal/state_exchange.h"

#include <algorithm>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/failpoint.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/os/machine/machine.h"
#include "lockstep/recovery/internal/broadcast_value.h"

namespace lockstep::inline internal {
namespace {

// A copy that nobody asked for takes a quarter of what is available at most.
constexpr std::uint64_t kLeastShareLeft = 4;

}  // namespace

ReplicaComparison compare_parameters(const ProcessGroup& group, std::uint64_t hash) {
  std::vector<std::int64_t> hashes;
  for (const auto& row : gather_rows(group, {static_cast<std::int64_t>(hash)})) {
    hashes.push_back(row[0]);
  }
  return compare_replicas(hashes);
}

void repair_replicas(const ProcessGroup& group, MovableState& state, std::int64_t steps,
                     bool& is_whole) {
  const ReplicaComparison found = compare_parameters(group, state.parameters_hash());
  if (found.odd.empty()) return;
  const std::string what = describe(found, steps - 1);
  if (!found.source) throw Error(what);
  if (group.rank() == *found.source) log(LogLevel::kWarning, what);
  const bool is_odd = std::ranges::count(found.odd, group.rank()) > 0;
  if (is_odd) is_whole = false;  // Also where the other one's does not arrive.
  const c10::IValue sent =
      broadcast_value(group, is_odd ? c10::IValue() : state.value(), *found.source);
  if (is_odd) state.take(sent);
  is_whole = true;
}

void keep_copy(const ProcessGroup& group, MovableState& state, const Standing& standing,
               StateMemory& memory, LauncherLink& link) {
  if (!link.connected() || group.local_rank() != 0) return;
  const c10::IValue value = state.value();
  const bool is_first = !memory.file().valid();
  if (standing.is_end && is_first &&
      StateMemory::bytes_of_copy(value) > available_memory_bytes() / kLeastShareLeft) {
    return;
  }
  try {
    if (memory.write(value, standing)) link.leave_memory(memory.file());
    failpoint("memory.left");
  } catch (const SystemError& error) {
    log(LogLevel::kWarning,
        concat("cannot copy the state to the launcher's memory: ", error.what()));
  }
}

}  // namespace lockstep::inline internal
