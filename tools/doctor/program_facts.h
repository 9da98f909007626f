#pragma once

#include <string>

#include "tools/doctor/machine_facts.h"

namespace lockstep::inline internal {

/// Finds a program as the launcher does, and its libraries by the dynamic loader, without running
/// it.
ProgramFacts look_at_program(const std::string& name);

/// The Python of PYTHON_EXEC, or python3, and the version of its torch, which is not imported.
PythonFacts look_at_python();

}  // namespace lockstep::inline internal
