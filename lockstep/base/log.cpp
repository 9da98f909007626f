#include "lockstep/base/log.h"

#include <string>

#include <unistd.h>

#include "lockstep/base/env.h"

namespace lockstep {
namespace {

const char* level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "?";
}

LogLevel threshold() {
  const auto wanted = env::text(env::kLogLevel);
  if (wanted == "debug") return LogLevel::kDebug;
  if (wanted == "info") return LogLevel::kInfo;
  if (wanted == "error") return LogLevel::kError;
  return LogLevel::kWarning;
}

}  // namespace

void log(LogLevel level, std::string_view message) noexcept try {
  static const LogLevel least = threshold();
  static const std::string rank = env::text(env::kRank).value_or("");
  if (level < least) return;
  std::string line = "lockstep";
  if (!rank.empty()) line.append("[").append(rank).append("]");
  line.append(" ").append(level_name(level)).append(": ").append(message).append("\n");
  // One write keeps lines of several ranks apart. A closed stderr is nobody's error.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
} catch (...) {
  // Out of memory while logging: the message is lost, the program goes on.
}

}  // namespace lockstep
