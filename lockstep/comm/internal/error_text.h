#pragma once

#include <exception>
#include <string>

#include <c10/util/Exception.h>

namespace lockstep::inline internal {

/// what(), without the stack of LibTorch's errors.
inline std::string error_text(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

}  // namespace lockstep::inline internal
