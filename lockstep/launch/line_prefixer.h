#pragma once

#include <string>
#include <string_view>

namespace lockstep {

/// Cuts a stream into lines and puts a prefix before each, so that streams shown together can be
/// told apart.
class LinePrefixer {
 public:
  /// A line longer than this is cut: a progress bar may never write the end of its line.
  static constexpr std::size_t kLongestLineBytes = 64 * 1024;

  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}

  /// The lines that `chunk` completes, prefixed; the rest waits for more.
  std::string feed(std::string_view chunk);
  /// The line that was begun, if any, completed.
  std::string flush();

 private:
  std::string prefix_;
  std::string begun_;
};

}  // namespace lockstep
