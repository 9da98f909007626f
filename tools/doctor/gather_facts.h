#pragma once

#include <string>

#include "tools/doctor/machine_facts.h"

namespace lockstep::inline internal {

struct GatherOptions {
  /// The rendezvous host, by whose route this machine finds its own address; empty: the default
  /// route.
  std::string towards{};
  /// --local-addr; empty: found by the route.
  std::string own_address{};
  /// The program that a job is to run; empty: none.
  std::string program{};
  std::string lockstep_version{};
};

/// Asks the system. A fact that cannot be found out keeps its default.
MachineFacts gather_facts(const GatherOptions& options);

/// Finds a program as the launcher does, and its libraries by the dynamic loader, without running
/// it.
ProgramFacts look_at_program(const std::string& name);

/// The Python of PYTHON_EXEC, or python3, and the version of its torch, which is not imported.
PythonFacts look_at_python();

}  // namespace lockstep::inline internal
