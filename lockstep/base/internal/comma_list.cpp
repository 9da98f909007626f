#include "lockstep/base/internal/comma_list.h"

#include <sstream>

namespace lockstep::inline internal {

std::vector<std::string> comma_list(const std::string& text) {
  std::vector<std::string> entries;
  std::istringstream stream(text);
  for (std::string entry; std::getline(stream, entry, ',');) entries.push_back(entry);
  return entries;
}

}  // namespace lockstep::inline internal
