#pragma once

#include <string_view>

namespace lockstep::inline internal {

/// Writes "lockstep: <message>" and a newline to standard error. If the terminal accepts no text
/// for a second, the message is dropped, so that the launcher never blocks on it.
void say(std::string_view message) noexcept;

/// Writes text unchanged, under the same rule.
void say_text(std::string_view text) noexcept;

}  // namespace lockstep::inline internal
