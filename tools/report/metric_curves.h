#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline internal {

struct CurvePoint {
  double step = 0;
  double value = 0;
  bool operator==(const CurvePoint&) const = default;
};

/// A metric over the steps of a training.
struct Curve {
  std::string name;
  std::vector<CurvePoint> points;
};

/// What metrics.jsonl says.
struct MetricCurves {
  /// In the order in which they first come; steps rise. What a run had of steps behind the one from
  /// which a later run went on is left out.
  std::vector<Curve> curves = {};
  /// From which steps runs went on so, or the first steps that they wrote where they do not say.
  std::vector<double> went_back_to = {};
  std::int64_t lines = 0;
  double last_step = 0;
  double last_epoch = 0;  ///< that was begun, from 0
  double seconds = 0;
  /// In words: lines that are damaged.
  std::vector<std::string> problems = {};
};

/// Pure. `name`: the file's, for problems.
MetricCurves parse_metrics(std::string_view text, const std::string& name);

/// Errors: UsageError where the folder has no metrics.jsonl; SystemError.
MetricCurves read_metrics(const std::filesystem::path& folder);

/// At most some four points for each of `columns` equal parts of the steps: the first, last, least
/// and largest of each, so that no peak is lost. Pure.
std::vector<CurvePoint> decimate(const std::vector<CurvePoint>& points, std::size_t columns);

}  // namespace lockstep::inline internal
