#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline internal {

/// The result of one check.
struct Finding {
  enum class Level {
    kOk,
    kWarn,  ///< works, but perhaps not as intended
    kFail,  ///< no job can work
  };
  Level level = Level::kOk;
  /// The machine's name; empty: all machines, or the only one.
  std::string machine{};
  /// One or two words: "host name".
  std::string subject{};
  std::string text{};
  /// What to do; empty where nothing is wrong.
  std::string cure{};
  bool operator==(const Finding&) const = default;
};

/// One line for each; failures come last, nearest to the prompt.
std::string text_of(const std::vector<Finding>& findings);
/// {"ok": …, "findings": [{"level", "machine", "subject", "text", "cure"}]}, and back.
std::string json_of(const std::vector<Finding>& findings);
/// Nothing for anything else.
std::optional<std::vector<Finding>> findings_of(std::string_view json);
/// With one line for all checks of a machine that passed.
std::vector<Finding> summarized(const std::vector<Finding>& findings);

bool has_failed(const std::vector<Finding>& findings);

}  // namespace lockstep::inline internal
