#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline internal {

/// What an examination says of one matter.
struct Finding {
  enum class Level {
    kOk,
    kWarn,  ///< works, but may not be what is wanted
    kFail,  ///< a job cannot work so
  };
  Level level = Level::kOk;
  /// Whose matter it is: a machine's name; empty: of all, or of the only one.
  std::string machine{};
  /// Of one or two words: "host name".
  std::string subject{};
  std::string text{};
  /// What mends it; empty where nothing is to be mended.
  std::string cure{};
  bool operator==(const Finding&) const = default;
};

/// A line for each, those that failed last, where they are seen.
std::string text_of(const std::vector<Finding>& findings);
/// One object of JSON: {"ok": …, "findings": [{"level", "machine", "subject", "text", "cure"}]}.
std::string json_of(const std::vector<Finding>& findings);
/// Back from that; nothing for anything else.
std::optional<std::vector<Finding>> findings_of(std::string_view json);
/// For people: what is in order on one machine of several is a number.
std::vector<Finding> summarized(const std::vector<Finding>& findings);

bool has_failed(const std::vector<Finding>& findings);

}  // namespace lockstep::inline internal
