#pragma once

#include <string>

namespace lockstep::inline internal {

/// To be called in a catch block: throws the error again, as what it is, with a further sentence
/// behind its message. Exceptions that are not of Lockstep pass as they are.
[[noreturn]] void rethrow_with_context(const std::string& context);

}  // namespace lockstep::inline internal
