#include "lockstep/train/internal/metric_file.h"

#include <cmath>
#include <cstdio>
#include <set>
#include <system_error>

#include <nlohmann/json.hpp>

#include "lockstep/base/internal/concat.h"
#include "lockstep/os/files/readable_file.h"

namespace lockstep::inline internal {
namespace {

std::string quoted(const std::string& text) {
  using nlohmann::json;
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

std::string beginning_of_line(const TrainingTime& time, std::int64_t epoch) {
  return concat("{\"step\": ", time.batches, ", \"epoch\": ", epoch,
                ", \"samples\": ", time.samples, ", \"seconds\": ", json_number(time.seconds));
}

bool has_bytes(const std::filesystem::path& path) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  return !error && bytes > 0;
}

}  // namespace

MetricFile::MetricFile(const std::filesystem::path& folder)
    : path_(folder / "metrics.jsonl"),
      log_(path_, {.what = "write metrics to", .when_full = "free disk space"}),
      has_earlier_runs_(has_bytes(path_)) {}

bool MetricFile::ends_with(const TrainingTime& time, const Metrics& metrics) const {
  using nlohmann::json;
  std::set<std::string> expected = {"step", "epoch", "samples", "seconds"};
  for (const auto& [name, value] : metrics) expected.insert(name);
  const std::string text = ReadableFile(path_).text();
  std::size_t end = text.rfind('\n');
  while (end != std::string::npos) {
    const std::size_t before = end == 0 ? std::string::npos : text.rfind('\n', end - 1);
    const std::size_t begin = before == std::string::npos ? 0 : before + 1;
    const json line = json::parse(text.substr(begin, end - begin), nullptr, false);
    const bool is_of_step =
        line.is_object() && line.contains("step") && line["step"] == time.batches;
    if (!is_of_step) return false;
    std::set<std::string> names;
    for (const auto& item : line.items()) names.insert(item.key());
    if (names == expected) return true;
    end = before;
  }
  return false;
}

void MetricFile::begin_run(const TrainingTime& time, std::int64_t epoch) {
  if (!has_earlier_runs_) return;
  log_.append(beginning_of_line(time, epoch) + ", \"resumed\": true}\n");
}

void MetricFile::write(const TrainingTime& time, std::int64_t epoch, const Metrics& metrics) {
  std::string line = beginning_of_line(time, epoch);
  for (const auto& [name, value] : metrics) {
    line += concat(", ", quoted(name), ": ", json_number(value));
  }
  log_.append(line + "}\n");
}

}  // namespace lockstep::inline internal
