#pragma once

#include <string>

#include "tools/doctor/machine_facts.h"

namespace lockstep::inline internal {

/// Looks at a program, without running it, as the launcher would find it. Libraries are those that
/// the dynamic loader says.
ProgramFacts look_at_program(const std::string& name);

/// Asks the Python of PYTHON_EXEC, or python3, which torch it has, without importing it.
PythonFacts look_at_python();

}  // namespace lockstep::inline internal
