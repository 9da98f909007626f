#pragma once

#include <string_view>

namespace lockstep::inline internal {

/// Writes "lockstep: <message>" and a newline to stderr. A terminal that takes no text for a second
/// loses the message: nobody may hold up the launcher by not reading.
void say(std::string_view message) noexcept;

/// Writes text as it is, under the same rule.
void say_text(std::string_view text) noexcept;

}  // namespace lockstep::inline internal
