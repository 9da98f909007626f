#pragma once

#include <sstream>
#include <string>

namespace lockstep::inline internal {

/// Joins values into one string, as operator<< writes them: concat("rank ", 3, ": no answer").
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

}  // namespace lockstep::inline internal
