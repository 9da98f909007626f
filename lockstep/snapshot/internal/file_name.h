#pragma once

#include <string_view>

namespace lockstep::inline internal {

/// Whether a name is that of a file in a directory, and leads to no other directory.
inline bool is_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

}  // namespace lockstep::inline internal
