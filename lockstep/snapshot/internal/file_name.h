#pragma once

#include <string_view>

namespace lockstep::inline internal {

/// A name of a file in a folder that leads nowhere else.
inline bool is_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

}  // namespace lockstep::inline internal
