#include "tools/report/metric_curves.h"

#include <algorithm>
#include <array>
#include <system_error>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/readable_file.h"

namespace lockstep::inline internal {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMostNamed = 5;
constexpr std::array<std::string_view, 4> kTimes = {"step", "epoch", "samples", "seconds"};

class MetricsParser {
 public:
  explicit MetricsParser(std::string name) : name_(std::move(name)) {}

  void take(std::string_view line) {
    ++result_.lines;
    const auto value = ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!value.is_object() || !is_step(number(value, "step"))) {
      if (++damaged_ <= kMostNamed) {
        result_.problems.push_back(
            concat(name_, ": line ", result_.lines, " is damaged, left out"));
      }
      return;
    }
    const double step = number(value, "step");
    if (is_resumed(value)) {
      go_back_after(step);
    } else if (step < result_.last_step) {
      go_back_to(step);
    }
    result_.last_step = step;
    result_.last_epoch = std::max(number(value, "epoch"), 0.0);
    result_.seconds = std::max(number(value, "seconds"), 0.0);
    for (const auto& [key, item] : value.items()) {
      if (!item.is_number() || std::ranges::find(kTimes, key) != kTimes.end()) continue;
      curve(key).push_back({.step = step, .value = item.get<double>()});
    }
  }

  MetricCurves finish() {
    if (damaged_ > kMostNamed) {
      result_.problems.push_back(concat(name_, ": ", damaged_ - kMostNamed, " more damaged lines"));
    }
    return std::move(result_);
  }

 private:
  static bool is_step(double step) {
    constexpr double kMostSteps = 1e15;  // A double counts so far.
    return step >= 0 && step <= kMostSteps;
  }
  // -1: there is none.
  static double number(const ordered_json& value, const char* key) {
    const auto found = value.find(key);
    return found != value.end() && found->is_number() ? found->get<double>() : -1;
  }

  std::vector<CurvePoint>& curve(const std::string& name) {
    const auto found = std::ranges::find(result_.curves, name, &Curve::name);
    if (found != result_.curves.end()) return found->points;
    return result_.curves.emplace_back(Curve{.name = name, .points = {}}).points;
  }

  static bool is_resumed(const ordered_json& value) {
    const auto found = value.find("resumed");
    return found != value.end() && found->is_boolean() && found->get<bool>();
  }

  // By the line "resumed" of a run.
  void go_back_after(double step) {
    if (result_.last_step > step) result_.went_back_to.push_back(step);
    for (Curve& one : result_.curves) {
      std::erase_if(one.points, [&](const CurvePoint& point) { return point.step > step; });
    }
  }

  void go_back_to(double step) {
    result_.went_back_to.push_back(step);
    for (Curve& one : result_.curves) {
      std::erase_if(one.points, [&](const CurvePoint& point) { return point.step >= step; });
    }
  }

  std::string name_;
  MetricCurves result_;
  std::size_t damaged_ = 0;
};

}  // namespace

MetricCurves parse_metrics(std::string_view text, const std::string& name) {
  MetricsParser parser(name);
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) parser.take(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parser.finish();
}

MetricCurves read_metrics(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "metrics.jsonl";
  std::error_code error;
  const bool is_there = std::filesystem::exists(path, error);
  if (error) {
    throw SystemError(concat("read ", path), error.value(), "choose a folder that you may read");
  }
  if (!is_there) {
    throw UsageError(concat("report: ", folder,
                            " has no metrics.jsonl; give the folder of a run (directory of "
                            "a Trainer)"));
  }
  MetricCurves curves = parse_metrics(ReadableFile(path).text(), "metrics.jsonl");
  if (curves.curves.empty()) {
    throw UsageError(concat("report: ", path,
                            " has no metrics yet; wait until some are logged (log_every_n_steps)"));
  }
  return curves;
}

std::vector<CurvePoint> decimate(const std::vector<CurvePoint>& points, std::size_t columns) {
  if (points.size() <= 4 * columns) return points;
  const double begin = points.front().step;
  const double width = (points.back().step - begin) / static_cast<double>(columns);
  std::vector<CurvePoint> kept;
  for (auto first = points.begin(); first != points.end();) {
    const auto column_of = [&](const CurvePoint& point) {
      return width > 0
                 ? std::min(static_cast<std::size_t>((point.step - begin) / width), columns - 1)
                 : 0;
    };
    const std::size_t column = column_of(*first);
    const auto end = std::find_if(first, points.end(),
                                  [&](const CurvePoint& p) { return column_of(p) != column; });
    const auto [least, most] = std::minmax_element(
        first, end, [](const CurvePoint& a, const CurvePoint& b) { return a.value < b.value; });
    std::array chosen = {first, least, most, end - 1};
    std::ranges::sort(chosen);
    const auto last = std::unique(chosen.begin(), chosen.end());
    for (auto one = chosen.begin(); one != last; ++one) kept.push_back(**one);
    first = end;
  }
  return kept;
}

}  // namespace lockstep::inline internal
