#pragma once

#include <string>

namespace lockstep::inline internal {

/// The same for files of the same content, and nobody means to deceive; empty for one that cannot
/// be read, or is empty.
std::string file_fingerprint(const std::string& path);

/// As that, of the file's length, beginning and end alone, where linkers put the number of a build:
/// takes no time whatever the length.
std::string quick_fingerprint(const std::string& path);

}  // namespace lockstep::inline internal
