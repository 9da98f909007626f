#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/job/line_filter.h"

namespace lockstep::inline internal {

/// Splits a stream into lines and puts a prefix before each, to distinguish streams that are shown
/// together.
class LinePrefixer {
 public:
  /// A longer line is split: a progress bar may never write a newline.
  static constexpr std::size_t kLongestLineBytes = 64 * 1024;

  /// Omits the lines that `filter`, if any, does not select. It sees lines without the prefix.
  explicit LinePrefixer(std::string prefix, std::optional<LineFilter> filter = std::nullopt)
      : prefix_(std::move(prefix)), filter_(std::move(filter)) {}

  /// Returns the lines that `chunk` completes, prefixed; keeps the rest.
  std::string feed(std::string_view chunk);
  /// Returns the incomplete line, if any, with a newline.
  std::string flush();

 private:
  void finish_line(std::string& lines);

  std::string prefix_;
  std::optional<LineFilter> filter_;
  std::string begun_;
};

}  // namespace lockstep::inline internal
