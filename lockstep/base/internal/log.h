#pragma once

#include <string_view>

namespace lockstep::inline internal {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Writes one line to stderr, "lockstep[<rank>] warning: <message>", in one write(2), when `level`
/// is at least that of LOCKSTEP_LOG (default: warning). Threads: any. Never throws.
void log(LogLevel level, std::string_view message) noexcept;

}  // namespace lockstep::inline internal
