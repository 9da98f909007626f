#include "tools/doctor/examined_machine.h"

#include <algorithm>

namespace lockstep::inline internal {

std::vector<std::string> addresses_for_others(const MachineFacts& facts) {
  std::vector<std::string> addresses;
  if (!facts.own_address.empty()) addresses.push_back(facts.own_address);
  for (const InterfaceFacts& each : facts.interfaces) {
    const bool known = std::ranges::find(addresses, each.address) != addresses.end();
    if (each.is_up && !each.is_loopback && !known) addresses.push_back(each.address);
  }
  return addresses;
}

ReachPlan reach_plan(const std::vector<ExaminedMachine>& machines, std::size_t machine,
                     const std::vector<std::uint16_t>& ports, const std::string& token) {
  ReachPlan plan{.own = machine, .port = ports[machine], .token = token};
  for (std::size_t other = 0; other < machines.size(); ++other) {
    if (other == machine || !machines[other].facts) continue;
    plan.targets.push_back({.machine = other,
                            .addresses = addresses_for_others(*machines[other].facts),
                            .port = ports[other]});
  }
  return plan;
}

}  // namespace lockstep::inline internal
