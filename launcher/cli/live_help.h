#pragma once

#include "launcher/command_line/command_help.h"

namespace lockstep::inline internal {

/// Flags and help of the commands for running jobs.
CommandHelp ps_help();
CommandHelp logs_help();
CommandHelp scale_help();
CommandHelp stop_help();

}  // namespace lockstep::inline internal
