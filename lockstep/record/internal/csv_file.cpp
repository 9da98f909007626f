#include "lockstep/record/internal/csv_file.h"

#include <algorithm>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/os/files/atomic_file.h"
#include "lockstep/os/files/readable_file.h"
#include "lockstep/record/internal/csv_text.h"

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
    file_.emplace(path_, LineLog::Words{.what = "write metrics to", .when_full = "make room"});
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
    file_.emplace(path_, LineLog::Words{.what = "write metrics to", .when_full = "make room"});
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
  file_.emplace(path_, LineLog::Words{.what = "write metrics to", .when_full = "make room"});
}

}  // namespace lockstep::inline internal
