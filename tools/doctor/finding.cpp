#include "tools/doctor/finding.h"

#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {
namespace {

const char* name_of(Finding::Level level) {
  switch (level) {
    case Finding::Level::kOk:
      return "ok";
    case Finding::Level::kWarn:
      return "warn";
    case Finding::Level::kFail:
      break;
  }
  return "fail";
}

std::string line_of(const Finding& finding) {
  const std::string level = name_of(finding.level);
  return concat(level, std::string(6 - level.size(), ' '),
                finding.machine.empty() ? "" : concat(finding.machine, ": "), finding.subject, ": ",
                finding.text, finding.cure.empty() ? "" : concat("; ", finding.cure), "\n");
}

}  // namespace

std::string text_of(const std::vector<Finding>& findings) {
  std::vector<Finding> sorted = findings;
  std::ranges::stable_sort(sorted, {}, &Finding::level);
  std::string text;
  for (const Finding& finding : sorted) text += line_of(finding);
  return text;
}

std::string json_of(const std::vector<Finding>& findings) {
  using nlohmann::json;
  json list = json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"level", name_of(finding.level)},
                    {"machine", finding.machine},
                    {"subject", finding.subject},
                    {"text", finding.text},
                    {"cure", finding.cure}});
  }
  return json({{"ok", !has_failed(findings)}, {"findings", list}})
             .dump(2, ' ', false, json::error_handler_t::replace) +
         "\n";
}

std::optional<std::vector<Finding>> findings_of(std::string_view text) {
  using nlohmann::json;
  std::vector<Finding> findings;
  try {
    const json object = json::parse(text);
    for (const json& each : object.at("findings")) {
      const std::string level = each.at("level");
      findings.push_back({.level = level == "ok"     ? Finding::Level::kOk
                                   : level == "warn" ? Finding::Level::kWarn
                                                     : Finding::Level::kFail,
                          .machine = each.at("machine"),
                          .subject = each.at("subject"),
                          .text = each.at("text"),
                          .cure = each.at("cure")});
    }
  } catch (const json::exception&) {
    return std::nullopt;
  }
  return findings;
}

std::vector<Finding> summarized(const std::vector<Finding>& findings) {
  std::vector<Finding> result;
  std::map<std::string, int> in_order;
  for (const Finding& finding : findings) {
    if (finding.level == Finding::Level::kOk && !finding.machine.empty()) {
      ++in_order[finding.machine];
    } else {
      result.push_back(finding);
    }
  }
  for (const auto& [machine, count] : in_order) {
    result.push_back(
        {Finding::Level::kOk, machine, "itself", concat(count, " matters in order"), ""});
  }
  return result;
}

bool has_failed(const std::vector<Finding>& findings) {
  return std::ranges::any_of(
      findings, [](const Finding& finding) { return finding.level == Finding::Level::kFail; });
}

}  // namespace lockstep::inline internal
