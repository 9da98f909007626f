#include "lockstep/base/internal/env.h"

#include <array>
#include <cmath>
#include <cstdlib>
#include <map>

#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"

namespace lockstep::inline internal::env {
namespace {

constexpr auto pointers_to(const auto&... variables) {
  return std::array{&variables...};
}

constexpr auto kAll = pointers_to(
    kRank, kWorldSize, kLocalRank, kLocalWorldSize, kMasterAddr, kMasterPort, kRestartCount,
    kMaxRestarts, kRunId, kUseAgentStore, kErrorFile, kStoreListenFd, kLauncherFd, kStandby,
    kStateMemoryFd, kJobMark, kJobSecret, kSpawn, kReplay, kOpenMpiRank, kOpenMpiWorldSize,
    kOpenMpiLocalRank, kOpenMpiLocalWorldSize, kPmiRank, kPmiWorldSize, kPmiLocalRank,
    kPmiLocalWorldSize, kSlurmRank, kSlurmWorldSize, kSlurmLocalRank, kSlurmNode,
    kSlurmTasksPerNode, kOpenMpiJob, kPmiConnection, kSlurmNodes, kSlurmJob, kSlurmStep, kTimeout,
    kInitTimeout, kBackend, kMemoryDomain, kCheckCalls, kGlooSocketIfname, kNcclBlockingWait,
    kLogLevel,
#if defined(LOCKSTEP_FAILPOINTS)
    kFailpoint,
#endif
    kNoColor, kTemporaryFolder, kTerm, kMallocTrimThreshold, kMallocMmapThreshold, kMallocMmapMax,
    kMallocTopPad, kGlibcTunables, kPythonExec, kShutdownTimeout, kAgentLogLevel, kEnableFileTimer,
    kHealthCheckPort, kLogLinePrefix, kOmpNumThreads, kHostsSilence, kCudaVisibleDevices, kPath);

std::map<std::string, std::string>& replaced() {
  static std::map<std::string, std::string> lines;
  return lines;
}

[[noreturn]] void refuse(const Variable& variable, const std::string& value, const char* wanted) {
  throw UsageError(concat("environment variable ", variable.name, "='", value, "' is not ", wanted,
                          " (", variable.help, ")"));
}

}  // namespace

std::span<const Variable* const> all() {
  return kAll;
}

void replace(const std::vector<std::string>& lines) {
  replaced().clear();
  for (const std::string& line : lines) {
    const auto equals = line.find('=');
    if (equals != std::string::npos) replaced()[line.substr(0, equals)] = line.substr(equals + 1);
  }
}

std::optional<std::string> text_or_empty(const Variable& variable) {
  const auto newer = replaced().find(variable.name);
  if (newer != replaced().end()) return newer->second;
  const char* value = std::getenv(variable.name);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

std::optional<std::string> text(const Variable& variable) {
  auto value = text_or_empty(variable);
  if (value && value->empty()) value.reset();
  return value;
}

std::vector<std::string> everything() {
  std::vector<std::string> result;
  for (char** line = environ; line != nullptr && *line != nullptr; ++line) {
    result.emplace_back(*line);
  }
  return result;
}

std::optional<int> integer(const Variable& variable) {
  const auto value = text(variable);
  if (!value) return std::nullopt;
  const auto number = parse_number<int>(*value);
  if (!number) refuse(variable, *value, "an integer");
  return number;
}

std::optional<bool> boolean(const Variable& variable) {
  const auto value = text(variable);
  if (!value) return std::nullopt;
  for (const char* word : {"1", "true", "on", "yes"}) {
    if (*value == word) return true;
  }
  for (const char* word : {"0", "false", "off", "no"}) {
    if (*value == word) return false;
  }
  refuse(variable, *value, "1 or 0");
}

std::optional<std::chrono::milliseconds> seconds(const Variable& variable) {
  const auto value = text(variable);
  if (!value) return std::nullopt;
  const auto number = parse_number<double>(*value);
  // A century is more than any deadline and less than what overflows the clock.
  constexpr double kLongestSeconds = 3.2e9;
  if (!number || !(*number > 0) || *number > kLongestSeconds) {
    refuse(variable, *value, "a positive number of seconds");
  }
  return std::chrono::milliseconds(static_cast<long long>(std::ceil(*number * 1000)));
}

}  // namespace lockstep::inline internal::env
