#pragma once

#include <string>

#include "tools/doctor/machine_facts.h"

namespace lockstep::inline internal {

struct GatherOptions {
  /// Where the machines meet, to which the way is looked for; empty: any other machine.
  std::string towards{};
  /// --local-addr: the address that this machine is told to have.
  std::string own_address{};
  /// Empty: none.
  std::string program{};
  std::string lockstep_version{};
};

/// Asks the system of this machine. What cannot be found out is left as it is.
MachineFacts gather_facts(const GatherOptions& options);

}  // namespace lockstep::inline internal
