#include "lockstep/base/internal/log.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/env.h"

namespace lockstep::inline internal {
namespace {

constexpr std::array kLevelNames = {"debug", "info", "warning", "error"};

struct Threshold {
  LogLevel level = LogLevel::kWarning;
  std::string unknown;  ///< what LOCKSTEP_LOG says, where that is no level
};

Threshold threshold() {
  const std::string wanted = env::text(env::kLogLevel).value_or("");
  const auto found = std::ranges::find(kLevelNames, wanted);
  if (found != kLevelNames.end()) return {static_cast<LogLevel>(found - kLevelNames.begin()), ""};
  return {LogLevel::kWarning, wanted};
}

// As lockstep run, torchrun, mpirun or srun say it. One that is no number is the error of the code
// that needs the number.
std::string rank_text() try {
  if (const auto rank = env::integer(env::kRank)) return std::to_string(*rank);
  for (const auto& [rank, world_size] : {std::pair(&env::kOpenMpiRank, &env::kOpenMpiWorldSize),
                                         std::pair(&env::kPmiRank, &env::kPmiWorldSize),
                                         std::pair(&env::kSlurmRank, &env::kSlurmWorldSize)}) {
    const auto number = env::integer(*rank);
    if (number && env::integer(*world_size)) return std::to_string(*number);
  }
  return "";
} catch (const UsageError&) {
  return "";
}

void write_line(const std::string& rank, LogLevel level, std::string_view message) {
  std::string line = "lockstep";
  if (!rank.empty()) line.append("[").append(rank).append("]");
  line.append(" ")
      .append(kLevelNames.at(static_cast<std::size_t>(level)))
      .append(": ")
      .append(message)
      .append("\n");
  // One write keeps lines of several ranks apart. A closed stderr is nobody's error.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

void log(LogLevel level, std::string_view message) noexcept try {
  static const std::string rank = rank_text();
  static const Threshold least = [] {
    Threshold read = threshold();
    if (!read.unknown.empty()) {
      write_line(
          rank, LogLevel::kWarning,
          "LOCKSTEP_LOG=" + read.unknown + " is not debug, info, warning or error; using warning");
    }
    return read;
  }();
  if (level < least.level) return;
  write_line(rank, level, message);
} catch (...) {
  // Out of memory while logging: the message is lost, the program goes on.
}

}  // namespace lockstep::inline internal
