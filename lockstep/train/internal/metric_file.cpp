#include "lockstep/train/internal/metric_file.h"

#include <cmath>
#include <cstdio>
#include <system_error>

#include <nlohmann/json.hpp>

#include "lockstep/base/internal/concat.h"

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
    : log_(folder / "metrics.jsonl", {.what = "write metrics to", .when_full = "make room"}),
      has_earlier_runs_(has_bytes(folder / "metrics.jsonl")) {}

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
