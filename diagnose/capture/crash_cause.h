#pragma once

#include <array>
#include <csignal>
#include <string_view>

#include "diagnose/capture/crash_stack.h"
#include "diagnose/capture/crash_text.h"

/// The cause of a crash as text. All functions except describe_exception() are async-signal-safe.
namespace lockstep::inline internal {

/// Signals of a program error.
inline constexpr std::array kCrashSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

/// Text of an exception; longer ones are truncated.
using CrashWords = std::array<char, 1024>;

/// "SIGSEGV at address 0x10", "SIGABRT (double free or corruption (top))".
void write_cause(CrashText& text, int signal, const siginfo_t& info,
                 const Interrupted& interrupted) noexcept;

/// "std::out_of_range: no such sample": the current exception; Lockstep's errors have the type name
/// that run_main uses. Ends with 0.
CrashWords describe_exception() noexcept;

/// Looks up what write_cause() needs but cannot find out in a signal handler.
void prepare_causes() noexcept;

}  // namespace lockstep::inline internal
