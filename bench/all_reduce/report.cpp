#include "bench/all_reduce/report.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include <nlohmann/json.hpp>

#include "lockstep/base/internal/concat.h"

namespace lockstep::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kSizeWidth = 12;
constexpr std::size_t kColumnWidth = 23;

std::string padded(const std::string& text, std::size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

std::string formatted(const char* format, double value) {
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// Three digits that count.
std::string digits_of(double value) {
  const int decimals = value < 10 ? 2 : value < 100 ? 1 : 0;
  return formatted(decimals == 2 ? "%.2f" : decimals == 1 ? "%.1f" : "%.0f", value);
}

std::string heading_of(const Subject& subject) {
  const bool in_place = subject.memory == "shared" && !subject.is_limit;
  return in_place ? subject.name + " in place" : subject.name;
}

std::string cell_of(const Row& row, const std::string& baseline) {
  if (!row.speedup || row.subject.name == baseline) return digits_of(row.us);
  return digits_of(row.us) + padded(digits_of(*row.speedup) + "x", 8);
}

// Subjects in the order of the first size at which they have a row.
std::vector<Subject> columns_of(const std::vector<Row>& rows) {
  std::vector<Subject> columns;
  for (const Row& row : rows) {
    const auto same = [&](const Subject& column) {
      return column.name == row.subject.name && column.memory == row.subject.memory;
    };
    if (std::none_of(columns.begin(), columns.end(), same)) columns.push_back(row.subject);
  }
  return columns;
}

void add_table(std::string& text, const std::vector<Row>& rows, const std::string& baseline) {
  const auto columns = columns_of(rows);
  text += padded("bytes", kSizeWidth);
  for (const Subject& column : columns) text += padded(heading_of(column), kColumnWidth);
  text += "\n";
  std::set<std::int64_t> sizes;
  for (const Row& row : rows) sizes.insert(row.bytes);
  for (const std::int64_t bytes : sizes) {
    text += padded(concat(bytes), kSizeWidth);
    for (const Subject& column : columns) {
      const auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& candidate) {
        return candidate.bytes == bytes && candidate.subject.name == column.name &&
               candidate.subject.memory == column.memory;
      });
      text += padded(row == rows.end() ? "-" : cell_of(*row, baseline), kColumnWidth);
    }
    text += "\n";
  }
}

Json json_of(const Row& row) {
  Json json;
  json[row.subject.is_limit ? "limit" : "backend"] = row.subject.name;
  json["memory"] = row.subject.memory;
  json["bytes"] = row.bytes;
  json["us"] = row.us;
  json["placement"] = row.placement;
  json["us_min"] = row.us_min;
  json["us_p90"] = row.us_p90;
  json["calls"] = row.calls;
  if (row.speedup) json["speedup"] = *row.speedup;
  if (row.share_of_kernel) json["share_of_kernel"] = *row.share_of_kernel;
  if (row.gb_per_s) json["gb_per_s"] = *row.gb_per_s;
  return json;
}

}  // namespace

std::string report_table(const Report& report) {
  std::string text = concat(
      "all-reduce: sum of float32, ", report.ranks, " ranks on ", report.cpus,
      report.cpus == 1 ? " processor" : " processors", " (", report.cpu_model, "), LibTorch ",
      report.libtorch, "\nmedian us of a call", report.fresh ? " over a tensor just written" : "",
      ", and how many ", "times faster than ", report.baseline, "; limits of the machine last\n");
  for (const char* placement : {"near", "far", "mixed", "unknown"}) {
    std::vector<Row> rows;
    std::copy_if(report.rows.begin(), report.rows.end(), std::back_inserter(rows),
                 [&](const Row& row) { return row.placement == placement; });
    if (rows.empty()) continue;
    text += concat("\nprocessors ", placement, " (round trips of ",
                   formatted("%.0f", report.round_trip_ns_min), " to ",
                   formatted("%.0f", report.round_trip_ns_max), " ns in this run)\n");
    add_table(text, rows, report.baseline);
  }
  return text;
}

std::string report_json(const Report& report) {
  Json json;
  json["benchmark"] = "all-reduce";
  json["ranks"] = report.ranks;
  json["cpus"] = report.cpus;
  json["fresh"] = report.fresh;
  json["cpu_model"] = report.cpu_model;
  json["libtorch"] = report.libtorch;
  json["baseline"] = report.baseline;
  json["seconds"] = report.seconds;
  json["round_trip_ns_min"] = report.round_trip_ns_min;
  json["round_trip_ns_max"] = report.round_trip_ns_max;
  json["rows"] = Json::array();
  json["limits"] = Json::array();
  for (const Row& row : report.rows) {
    json[row.subject.is_limit ? "limits" : "rows"].push_back(json_of(row));
  }
  return json.dump(2) + "\n";
}

}  // namespace lockstep::bench
