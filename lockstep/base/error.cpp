#include "lockstep/base/error.h"

#include <cerrno>
#include <system_error>

#include "lockstep/base/concat.h"

namespace lockstep {
namespace {

// Whatever was tried, these have one cure.
std::string advice_for(int errno_value, const std::string& advice) {
  if (errno_value == EMFILE || errno_value == ENFILE) {
    return "; raise the limit on open files (ulimit -n)";
  }
  return advice.empty() ? "" : concat("; ", advice);
}

}  // namespace

SystemError::SystemError(const std::string& operation, int errno_value, const std::string& advice)
    : Error(concat(operation, ": ", std::generic_category().message(errno_value),
                   advice_for(errno_value, advice))),
      errno_value_(errno_value) {}

}  // namespace lockstep
