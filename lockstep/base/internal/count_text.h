#pragma once

#include <string>

#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

/// "1 worker", "2 workers".
template <class Number>
std::string count_text(Number count, const char* noun) {
  return concat(count, " ", noun, count == 1 ? "" : "s");
}

}  // namespace lockstep::inline internal
