#pragma once

#include <string>

#include "launcher/job/launch_options.h"
#include "launcher/rendezvous/rendezvous_state.h"

namespace lockstep::inline internal {

/// The file that runs a program, found through PATH.
/// Errors: ProgramError if there is none.
std::string executable_of(const Program& program);

/// Describes this machine to the rendezvous. `executable`: executable_of() its program.
RendezvousNode own_node(const LaunchOptions& options, const std::string& executable);

}  // namespace lockstep::inline internal
