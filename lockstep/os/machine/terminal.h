#pragma once

#include <optional>

namespace lockstep::inline internal {

/// Columns of the terminal that `fd` writes to; nothing when it writes elsewhere. A terminal that
/// does not tell its size counts as the classic 80.
std::optional<int> terminal_columns(int fd);

}  // namespace lockstep::inline internal
