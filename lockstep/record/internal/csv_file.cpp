#include "lockstep/record/internal/csv_file.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/os/files/atomic_file.h"
#include "lockstep/os/files/readable_file.h"

namespace lockstep::inline internal {
namespace {

std::string header_of(const std::vector<std::string>& columns) {
  std::string header;
  for (const std::string& column : columns)
    header += concat(header.empty() ? "" : ",", csv_cell(column));
  return header;
}

}  // namespace

CsvFile::CsvFile(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code error;
  if (!std::filesystem::exists(path_, error)) {
    // So that a folder that cannot be written is known now.
    file_.emplace(path_,
                  LineLog::Words{.what = "write metrics to", .when_full = "free disk space"});
    return;
  }
  const std::string text = ReadableFile(path_).text();
  const auto lines = csv_lines(text);
  if (lines.empty()) return;
  columns_ = csv_cells(lines.front());
  const bool is_table = std::ranges::none_of(columns_, &std::string::empty);
  if (!is_table) {
    throw UsageError(concat("write metrics to ", path_,
                            ": it is there and has no header of names; remove it, or choose "
                            "another folder"));
  }
  const auto whole_bytes = static_cast<std::size_t>(lines.back().end() - text.data());
  if (text.substr(whole_bytes) == "\n" || text.substr(whole_bytes) == "\r\n") {
    file_.emplace(path_,
                  LineLog::Words{.what = "write metrics to", .when_full = "free disk space"});
  }
}

std::size_t CsvFile::column_of(const std::string& name) {
  const auto found = std::ranges::find(columns_, name);
  if (found == columns_.end()) {
    file_.reset();
    columns_.push_back(name);
    return columns_.size() - 1;
  }
  return static_cast<std::size_t>(found - columns_.begin());
}

void CsvFile::write(const Row& row) {
  std::vector<std::string> cells(columns_.size());
  for (const auto& [name, value] : row) {
    const std::size_t column = column_of(name);
    cells.resize(columns_.size());
    cells[column] = csv_number(value);
  }
  if (!file_) write_anew();
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) line += concat(i == 0 ? "" : ",", cells[i]);
  file_->append(line + "\n");
}

bool CsvFile::ends_with(const Row& row, const std::string& column) const {
  const auto is_named = [](const std::string& name) {
    return [&name](const auto& cell) { return cell.first == name; };
  };
  const auto key = std::ranges::find_if(row, is_named(column));
  std::error_code error;
  if (key == row.end() || !std::filesystem::exists(path_, error)) return false;
  const std::string text = ReadableFile(path_).text();
  auto lines = csv_lines(text);
  if (lines.empty()) return false;
  lines.erase(lines.begin());
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    Cells cells = csv_cells(*line);
    cells.resize(columns_.size());
    bool has_key = false;
    bool has_same = true;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (columns_[i] == column) has_key = cells[i] == csv_number(key->second);
      has_same = has_same && cells[i].empty() == std::ranges::none_of(row, is_named(columns_[i]));
    }
    if (!has_key) return false;
    if (has_same) return true;
  }
  return false;
}

void CsvFile::drop_rows_after(const std::string& column, double value) {
  const auto found = std::ranges::find(columns_, column);
  if (found == columns_.end()) return;
  const auto index = static_cast<std::size_t>(found - columns_.begin());
  write_anew([&](const Cells& cells) {
    const std::string text = index < cells.size() ? cells[index] : std::string();
    return parse_number<double>(text).value_or(value) <= value;
  });
}

void CsvFile::write_anew(const std::function<bool(const Cells&)>& is_kept) {
  std::string text = header_of(columns_) + "\n";
  std::error_code error;
  if (std::filesystem::exists(path_, error)) {
    const std::string before = ReadableFile(path_).text();
    auto lines = csv_lines(before);
    if (!lines.empty()) lines.erase(lines.begin());
    for (const std::string_view line : lines) {
      const Cells cells = csv_cells(line);
      if (is_kept && !is_kept(cells)) continue;
      text += line;
      text.append(columns_.size() - std::min(columns_.size(), cells.size()), ',');
      text += "\n";
    }
  }
  AtomicFile file(path_);
  file.write(text.data(), text.size());
  file.commit();
  file_.emplace(path_, LineLog::Words{.what = "write metrics to", .when_full = "free disk space"});
}

std::vector<std::string_view> csv_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  bool is_quoted = false;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') is_quoted = !is_quoted;
    if (text[i] != '\n' || is_quoted) continue;
    lines.push_back(text.substr(begin, i - begin));
    if (lines.back().ends_with('\r')) lines.back().remove_suffix(1);
    begin = i + 1;
  }
  return lines;
}

std::vector<std::string> csv_cells(std::string_view line) {
  std::vector<std::string> cells(1);
  bool is_quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const bool is_doubled = is_quoted && line.substr(i, 2) == "\"\"";
    if (is_doubled) {
      cells.back() += line[i++];
    } else if (line[i] == '"') {
      is_quoted = !is_quoted;
    } else if (line[i] == ',' && !is_quoted) {
      cells.emplace_back();
    } else {
      cells.back() += line[i];
    }
  }
  return cells;
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char letter : text)
    quoted += letter == '"' ? std::string(2, '"') : std::string{letter};
  return quoted + "\"";
}

std::string csv_number(double value) {
  if (std::isnan(value)) return "nan";
  constexpr double kMostWhole = 9007199254740992.0;  // 2^53
  const bool is_whole = std::abs(value) < kMostWhole && value == std::trunc(value);
  char text[32];
  std::snprintf(text, sizeof text, is_whole ? "%.0f" : "%.9g", value);
  return text;
}

}  // namespace lockstep::inline internal
