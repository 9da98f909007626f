#pragma once

#include <string_view>

namespace lockstep::inline internal {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Writes "lockstep[<rank>] warning: <message>" to standard error, in one write(2), if `level` is
/// at least LOCKSTEP_LOG (default: warning). Never throws.
/// Threads: any.
void log(LogLevel level, std::string_view message) noexcept;

}  // namespace lockstep::inline internal
