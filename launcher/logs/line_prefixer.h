#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/job/line_filter.h"

namespace lockstep::inline internal {

/// Cuts a stream into lines and puts a prefix before each, so that streams shown together can be
/// told apart.
class LinePrefixer {
 public:
  /// A line longer than this is cut: a progress bar may never write the end of its line.
  static constexpr std::size_t kLongestLineBytes = 64 * 1024;

  /// Lines that `filter`, if there is one, does not select are left out; it does not see the
  /// prefix.
  explicit LinePrefixer(std::string prefix, std::optional<LineFilter> filter = std::nullopt)
      : prefix_(std::move(prefix)), filter_(std::move(filter)) {}

  /// The lines that `chunk` completes, prefixed; the rest waits for more.
  std::string feed(std::string_view chunk);
  /// The line that was begun, if any, completed.
  std::string flush();

 private:
  void finish_line(std::string& lines);

  std::string prefix_;
  std::optional<LineFilter> filter_;
  std::string begun_;
};

}  // namespace lockstep::inline internal
