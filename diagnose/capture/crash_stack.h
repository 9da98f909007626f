#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

/// The stack of a thread that crashed. All functions are async-signal-safe.
namespace lockstep::inline internal {

/// A place in the code: its address in this process, and its offset in the file that it was loaded
/// from.
struct CrashFrame {
  std::uintptr_t address = 0;
  std::uintptr_t offset = 0;
  std::array<char, 256> module{};  ///< path, ends with 0; empty: unknown
};

/// Instruction and stack pointer of an interrupted thread; both 0: unknown.
struct Interrupted {
  std::uintptr_t instruction = 0;
  std::uintptr_t stack = 0;
};

/// From the `context` argument of a signal handler.
Interrupted interrupted_at(const void* context) noexcept;

/// Writes the calls of this thread, innermost first, from the interrupted instruction on. Returns
/// their number. If the instruction is not on the stack (a jump to an invalid address): only it and
/// its caller.
std::size_t collect_stack(const Interrupted& interrupted, std::span<CrashFrame> frames) noexcept;

/// Fills in modules and offsets, from /proc/self/maps.
void find_modules(std::span<CrashFrame> frames) noexcept;

/// Whether the file is part of the C or C++ library, in which abort(), uncaught exceptions and
/// faults by wrong arguments end.
bool is_runtime_library(std::string_view path) noexcept;

/// A line of /proc/self/maps.
struct MappedRange {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  std::uintptr_t file_offset = 0;
  std::string_view path{};
};

/// All 0 for any other text.
MappedRange parse_mapped_range(std::string_view line) noexcept;

}  // namespace lockstep::inline internal
