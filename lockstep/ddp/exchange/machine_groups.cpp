#include "lockstep/ddp/exchange/machine_groups.h"

#include <functional>
#include <string>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/backends/hierarchical/machines.h"
#include "lockstep/comm/internal/agreement.h"
#include "lockstep/comm/internal/backend_choice.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/comm/internal/machine_group.h"
#include "lockstep/comm/internal/process_group_state.h"

namespace lockstep::inline internal {
namespace {

std::shared_ptr<hierarchical::FailureNote> make_note(const ProcessGroup& group) {
  const std::string keys = concat("shards/", count_replica(group));
  const ProcessGroup::State& state = ProcessGroupAccess::state(group, "machine_groups");
  if (state.while_waiting) return nullptr;
  return std::make_shared<hierarchical::FailureNote>(
      c10::make_intrusive<c10d::PrefixStore>(keys, state.store), group.rank());
}

}  // namespace

MemoryDomains machines_by_rank(const ProcessGroup& group) {
  const auto own = static_cast<std::int64_t>(std::hash<std::string>()(own_memory_domain()));
  std::vector<std::int64_t> names;
  for (const auto& row : gather_rows(group, {own})) names.push_back(row.front());
  return number_by_first(names);
}

MachineGroups machine_groups(const ProcessGroup& group) {
  const int world_size = group.world_size();
  MemoryDomains domains(static_cast<std::size_t>(world_size), 0);
  const bool spans_machines = group.backend_name() == "hierarchical" && !group.shares_memory();
  if (spans_machines) {
    domains = machines_by_rank(group);
  } else if (!group.shares_memory()) {
    for (int rank = 0; rank < world_size; ++rank) domains[static_cast<std::size_t>(rank)] = rank;
  }
  const auto own = hierarchical::machines_of(domains, group.rank());
  MachineGroups groups{.ranks = own.ranks,
                       .machine = static_cast<std::size_t>(own.machine),
                       .local_index = static_cast<std::size_t>(own.local_index),
                       .shares = static_cast<std::size_t>(own.shares)};
  if (world_size == 1) return groups;
  if (!spans_machines) {
    (group.shares_memory() ? groups.local : groups.partners) = group;
    return groups;
  }
  groups.are_new = true;
  groups.note = make_note(group);
  groups.local = machine_group(group, groups.ranks);
  if (groups.local.world_size() == 1) groups.local = {};
  for (std::size_t share = 0; share < groups.shares; ++share) {
    std::vector<int> partners;
    for (const auto& ranks : groups.ranks) partners.push_back(ranks[share]);
    if (const ProcessGroup mine = group.new_group(partners, {.backend = "gloo"})) {
      groups.partners = mine;
    }
  }
  return groups;
}

}  // namespace lockstep::inline internal
