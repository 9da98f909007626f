#pragma once

#include <string>

namespace lockstep::inline internal {

/// Equal for files of equal content; not secure against an attacker. Empty for a file that cannot
/// be read or is empty.
std::string file_fingerprint(const std::string& path);

/// Like file_fingerprint, of the file's length, start and end only, where linkers write the build
/// id: its time does not depend on the length.
std::string quick_fingerprint(const std::string& path);

}  // namespace lockstep::inline internal
