#include "tools/doctor/finding.h"

#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

using nlohmann::json;

NLOHMANN_JSON_SERIALIZE_ENUM(Finding::Level, {{Finding::Level::kFail, "fail"},
                                              {Finding::Level::kWarn, "warn"},
                                              {Finding::Level::kOk, "ok"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Finding, level, machine, subject, text, cure)

std::string text_of(const std::vector<Finding>& findings) {
  std::vector<Finding> sorted = findings;
  std::ranges::stable_sort(sorted, {}, &Finding::level);
  std::string text;
  for (const Finding& finding : sorted) {
    const auto level = json(finding.level).get<std::string>();
    text +=
        concat(level, std::string(6 - level.size(), ' '),
               finding.machine.empty() ? "" : concat(finding.machine, ": "), finding.subject, ": ",
               finding.text, finding.cure.empty() ? "" : concat("; ", finding.cure), "\n");
  }
  return text;
}

std::string json_of(const std::vector<Finding>& findings) {
  const json object = {{"ok", !has_failed(findings)}, {"findings", findings}};
  return object.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

std::optional<std::vector<Finding>> findings_of(std::string_view text) {
  try {
    return json::parse(text).at("findings").get<std::vector<Finding>>();
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

std::vector<Finding> summarized(const std::vector<Finding>& findings) {
  std::vector<Finding> result;
  std::map<std::string, int> passed;
  for (const Finding& finding : findings) {
    if (finding.level == Finding::Level::kOk && !finding.machine.empty()) {
      ++passed[finding.machine];
    } else {
      result.push_back(finding);
    }
  }
  for (const auto& [machine, count] : passed) {
    result.push_back({Finding::Level::kOk, machine, "checks", concat(count, " passed"), ""});
  }
  return result;
}

bool has_failed(const std::vector<Finding>& findings) {
  return std::ranges::any_of(
      findings, [](const Finding& finding) { return finding.level == Finding::Level::kFail; });
}

}  // namespace lockstep::inline internal
