#pragma once

#include <array>
#include <csignal>
#include <string_view>

#include "diagnose/capture/crash_stack.h"
#include "diagnose/capture/crash_text.h"

/// In words, what a process crashes of. But for describe_exception() all of it may run in a handler
/// of signals.
namespace lockstep::inline internal {

/// Signals that a fault of the program raises.
inline constexpr std::array kCrashSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

/// Longer texts of exceptions are cut.
using CrashWords = std::array<char, 1024>;

/// "SIGSEGV at address 0x10", "SIGABRT (double free or corruption (top))".
void write_cause(CrashText& text, int signal, const siginfo_t& info,
                 const Interrupted& interrupted) noexcept;

/// "std::out_of_range: no such sample", of the exception that is being handled; its type as
/// run_main names it for errors of ours. Ends with 0.
CrashWords describe_exception() noexcept;

/// Finds out what write_cause() needs and cannot look for.
void prepare_causes() noexcept;

}  // namespace lockstep::inline internal
