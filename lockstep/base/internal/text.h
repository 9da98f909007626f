#pragma once

#include <string>
#include <vector>

#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

/// What stands between the commas: "a,,b" are three, "" is none, and a comma at the end ends the
/// last.
std::vector<std::string> comma_list(const std::string& text);

/// A number of bytes in three digits and decimal units: "512 B", "46.8 MB", "1.98 GB".
std::string size_text(double bytes);

/// "1 worker", "2 workers".
template <class Number>
std::string count_text(Number count, const char* noun) {
  return concat(count, " ", noun, count == 1 ? "" : "s");
}

}  // namespace lockstep::inline internal
