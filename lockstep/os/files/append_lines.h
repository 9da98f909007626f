#pragma once

#include <filesystem>
#include <string>

#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Opens a file to append lines; creates it if needed. Removes an incomplete last line, left by a
/// killed process or a full disk. Invalid, with errno, if the file cannot be opened.
UniqueFd open_to_append_lines(const std::filesystem::path& path);

/// A file to which successive runs of a program append lines.
/// Threads: one at a time.
class LineLog {
 public:
  /// Texts for errors.
  struct Words {
    std::string what;       ///< the operation: "write metrics to"
    std::string when_full;  ///< advice if the disk is full: "free disk space"
  };

  /// Creates the file's folder if needed.
  /// Errors: SystemError.
  LineLog(std::filesystem::path path, Words words);

  /// Appends a line, which includes its newline, in one write.
  /// Errors: SystemError (disk full).
  void append(const std::string& line);

 private:
  std::filesystem::path path_;
  Words words_;
  UniqueFd file_;
};

}  // namespace lockstep::inline internal
