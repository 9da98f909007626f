#pragma once

/// What `lockstep run` needs to show where a Python rank hangs.
namespace lockstep::python {

/// Python's module faulthandler writes the stacks of all threads when the launcher asks for them by
/// a real-time signal, SIGRTMAX - 1. Nothing happens where no launcher started this process, or
/// where the program handles the signal itself.
/// Threads: with the GIL, once. Errors: those of faulthandler.
void show_python_stacks_to_launcher();

}  // namespace lockstep::python
