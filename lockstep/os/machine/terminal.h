#pragma once

#include <optional>

namespace lockstep::inline internal {

/// Columns of the terminal that `fd` writes to; empty if it is no terminal. 80 for a terminal that
/// does not report its size.
std::optional<int> terminal_columns(int fd);

}  // namespace lockstep::inline internal
