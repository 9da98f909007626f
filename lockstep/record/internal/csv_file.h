#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/os/files/append_lines.h"

namespace lockstep::inline internal {

/// A table of named numbers as CSV (RFC 4180), a row per set, to which each run appends.
///
/// A new name becomes a column after the others: the file is then rewritten atomically, with empty
/// cells in earlier rows. So the table always has one header; use few names. A number that is not
/// finite is "nan", "inf" or "-inf". The next run drops an incomplete last row, as a full disk
/// leaves it.
/// Threads: one at a time.
/// Errors: SystemError with the file; UsageError if the file is no such table.
class CsvFile {
 public:
  using Row = std::vector<std::pair<std::string, double>>;

  explicit CsvFile(std::filesystem::path path);

  /// Writes a row; each name once.
  void write(const Row& row);
  /// Whether one of the last rows (those with the row's number in `column`) has numbers in the same
  /// columns.
  bool ends_with(const Row& row, const std::string& column) const;
  /// Removes rows with a larger number in the column: of steps that were rolled back.
  void drop_rows_after(const std::string& column, double value);

 private:
  using Cells = std::vector<std::string>;

  std::size_t column_of(const std::string& name);
  void write_anew(const std::function<bool(const Cells&)>& is_kept = {});

  std::filesystem::path path_;
  std::vector<std::string> columns_;
  /// Empty while the file must be created or rewritten.
  std::optional<LineLog> file_;
};

/// The complete lines of a CSV text, without newlines; a newline within quotes ends no line. Pure.
std::vector<std::string_view> csv_lines(std::string_view text);

/// The cells of a line, without quotes. Pure.
std::vector<std::string> csv_cells(std::string_view line);

/// A cell, quoted if needed. Pure.
std::string csv_cell(const std::string& text);

/// Nine significant digits; integers without a fraction. Pure.
std::string csv_number(double value);

}  // namespace lockstep::inline internal
