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

/// A metric over steps.
struct Curve {
  std::string name;
  std::vector<CurvePoint> points;
};

/// The content of metrics.jsonl.
struct MetricCurves {
  /// In the order of the file; steps rise. Steps that a later run replaced are left out.
  std::vector<Curve> curves = {};
  /// Steps at which a run resumed before the end of another.
  std::vector<double> went_back_to = {};
  std::int64_t lines = 0;
  double last_step = 0;
  double last_epoch = 0;  ///< the last that began, from 0
  double seconds = 0;
  /// Damaged lines, in words.
  std::vector<std::string> problems = {};
};

/// Pure. `name`: the file's, for problems.
MetricCurves parse_metrics(std::string_view text, const std::string& name);

/// Errors: UsageError where the folder has no metrics.jsonl; SystemError.
MetricCurves read_metrics(const std::filesystem::path& folder);

/// The first, last, least and largest point of each of `columns` equal parts of the steps: no peak
/// is lost. Pure.
std::vector<CurvePoint> decimate(const std::vector<CurvePoint>& points, std::size_t columns);

}  // namespace lockstep::inline internal
