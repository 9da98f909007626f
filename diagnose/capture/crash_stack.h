#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

/// Where a thread was when it crashed. All of it may run in a handler of signals.
namespace lockstep::inline internal {

/// A place in the code: its address here, and where that is in the file it was loaded from.
struct CrashFrame {
  std::uintptr_t address = 0;
  std::uintptr_t offset = 0;
  std::array<char, 256> module{};  ///< path, ends with 0; empty: unknown
};

/// Where a thread was interrupted. All 0: unknown.
struct Interrupted {
  std::uintptr_t instruction = 0;
  std::uintptr_t stack = 0;
};

/// From the `context` that a handler of signals is given.
Interrupted interrupted_at(const void* context) noexcept;

/// The calls that this thread is in, innermost first, from `instruction` on; returns how many.
/// Where the instruction is not among them (a jump to nowhere), it alone and its caller.
std::size_t collect_stack(const Interrupted& interrupted, std::span<CrashFrame> frames) noexcept;

/// Fills in the modules and offsets, by /proc/self/maps.
void find_modules(std::span<CrashFrame> frames) noexcept;

/// Whether this file is part of the C or C++ library: where abort() and uncaught exceptions end,
/// and what faults of wrong arguments.
bool is_runtime_library(std::string_view path) noexcept;

/// A line of /proc/self/maps.
struct MappedRange {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  std::uintptr_t file_offset = 0;
  std::string_view path{};
};

/// All 0 for what is no such line.
MappedRange parse_mapped_range(std::string_view line) noexcept;

}  // namespace lockstep::inline internal
