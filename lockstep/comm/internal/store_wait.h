#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/internal/deadline.h"

namespace c10d {
class Store;
}

namespace lockstep::inline internal {

/// Waits until all keys are in the store or the deadline passes. Returns the indices of the keys
/// that are missing then, in order. `on_wait`, if given, is called about every ten seconds with
/// those that are missing so far, so that nobody waits in silence.
std::vector<int> wait_for_keys(c10d::Store& store, const std::vector<std::string>& keys,
                               const Deadline& deadline,
                               const std::function<void(const std::vector<int>&)>& on_wait = {});

/// "1, 3, 7"; long lists end in "and 12 more".
std::string join_numbers(const std::vector<int>& numbers);

}  // namespace lockstep::inline internal
