#pragma once

#include <string>

#include "launcher/job/launch_options.h"
#include "launcher/rendezvous/rendezvous_state.h"

namespace lockstep::inline internal {

/// The file to execute for a program, looked up in PATH. Errors: ProgramError when there is none.
std::string executable_of(const Program& program);

/// How this machine presents itself to the rendezvous. `executable`: executable_of() its program.
RendezvousNode own_node(const LaunchOptions& options, const std::string& executable);

}  // namespace lockstep::inline internal
