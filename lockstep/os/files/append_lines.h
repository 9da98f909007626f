#pragma once

#include <filesystem>
#include <string>

#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Opens a file to append lines, and makes it if need be. A last line that is cut off, as of a
/// process that was killed or a full disk, is dropped. Invalid, with errno: it cannot be opened.
UniqueFd open_to_append_lines(const std::filesystem::path& path);

/// A file to which several runs of a program append lines. Threads: one at a time.
class LineLog {
 public:
  struct Words {
    std::string what;       ///< is done to the file: "write metrics to"
    std::string when_full;  ///< what then helps: "make room"
  };

  /// Makes the file's folder if need be. Errors: SystemError.
  LineLog(std::filesystem::path path, Words words);

  /// In one write. `line` has its end. Errors: SystemError (disk full).
  void append(const std::string& line);

 private:
  std::filesystem::path path_;
  Words words_;
  UniqueFd file_;
};

}  // namespace lockstep::inline internal
