#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "diagnose/verdict/crash_report.h"

struct backtrace_state;

namespace lockstep::inline internal {

/// The functions and lines of a program or library, by libbacktrace.
/// Lifetime: what it has read stays in memory until the process ends.
class ModuleSymbols {
 public:
  explicit ModuleSymbols(const std::string& path);

  /// What was at this address in a process that had loaded the module, `offset` bytes from its
  /// begin. Empty: unknown.
  std::vector<SourceLine> find(std::uint64_t address, std::uint64_t offset) const;

  /// False in a build without libbacktrace: nothing is ever known.
  static bool available();

 private:
  std::string path_;
  backtrace_state* state_ = nullptr;
  bool has_fixed_address_ = false;
};

/// "std::vector<int>::push_back(int&&)" for a name as linkers know it, with the usual short forms
/// of the standard library's types. Others stay as they are.
std::string readable_name(const char* symbol);

}  // namespace lockstep::inline internal
