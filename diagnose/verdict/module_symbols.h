#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "diagnose/verdict/crash_report.h"

struct backtrace_state;

namespace lockstep::inline internal {

/// Finds functions and lines in a program or library, with libbacktrace.
/// Lifetime: what it has read stays in memory until the process ends.
class ModuleSymbols {
 public:
  explicit ModuleSymbols(const std::string& path);

  /// What was at this address in a process that had loaded the module, `offset` bytes from its
  /// start. Empty: unknown.
  std::vector<SourceLine> find(std::uint64_t address, std::uint64_t offset) const;

  /// False in a build without libbacktrace, which finds nothing.
  static bool available();

 private:
  std::string path_;
  [[maybe_unused]] backtrace_state* state_ = nullptr;
  [[maybe_unused]] bool has_fixed_address_ = false;
};

/// Demangles a symbol: "std::vector<int>::push_back(int&&)", with the usual short forms of the
/// standard library's types. Returns other names unchanged.
std::string readable_name(const char* symbol);

}  // namespace lockstep::inline internal
