#pragma once

#include <string>

namespace lockstep::inline internal {

/// Call it in a catch block: rethrows a Lockstep error of the same type with a further sentence in
/// its message. Other exceptions pass unchanged.
[[noreturn]] void rethrow_with_context(const std::string& context);

}  // namespace lockstep::inline internal
