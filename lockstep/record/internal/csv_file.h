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

/// A table of named numbers as CSV (RFC 4180), a row for each set, to which each run appends.
///
/// A name that is new becomes a column behind the others: the file is then written anew, whole or
/// not at all, with empty cells in the rows before. So the table has one header, whatever is
/// measured when; and names should be few. A number that is not finite is "nan", "inf" or "-inf".
/// A last row that is cut off, as by a full disk, is left out by the next run. Threads: one.
/// Errors: SystemError, naming the file; UsageError where it is there and no such table.
class CsvFile {
 public:
  using Row = std::vector<std::pair<std::string, double>>;

  explicit CsvFile(std::filesystem::path path);

  /// Each name once.
  void write(const Row& row);
  /// Whether one of the last rows, those with the row's number in `column`, has numbers in the same
  /// columns.
  bool ends_with(const Row& row, const std::string& column) const;
  /// Leaves out the rows in which the column has a larger number: of steps that were given up.
  void drop_rows_after(const std::string& column, double value);

 private:
  using Cells = std::vector<std::string>;

  std::size_t column_of(const std::string& name);
  void write_anew(const std::function<bool(const Cells&)>& is_kept = {});

  std::filesystem::path path_;
  std::vector<std::string> columns_;
  /// Unset where the file is to be made, or written anew.
  std::optional<LineLog> file_;
};

/// The lines of a CSV text without their ends; a line's end within quotes is none. What follows the
/// last end is left out. Pure.
std::vector<std::string_view> csv_lines(std::string_view text);

/// The cells of a line, without their quotes. Pure.
std::vector<std::string> csv_cells(std::string_view line);

/// In quotes where it needs them. Pure.
std::string csv_cell(const std::string& text);

/// 9 digits, whole numbers whole. Pure.
std::string csv_number(double value);

}  // namespace lockstep::inline internal
