#include "lockstep/base/error.h"

#include <system_error>

#include "lockstep/base/concat.h"

namespace lockstep {
namespace {

std::string errno_text(int errno_value) {
  return std::generic_category().message(errno_value);
}

}  // namespace

SystemError::SystemError(const std::string& operation, int errno_value)
    : Error(concat(operation, ": ", errno_text(errno_value))), errno_value_(errno_value) {}

SystemError::SystemError(const std::string& operation, int errno_value, const std::string& advice)
    : Error(concat(operation, ": ", errno_text(errno_value), "; ", advice)),
      errno_value_(errno_value) {}

}  // namespace lockstep
