#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep::inline internal {

/// The candidate that `name` was probably meant to be: one that it begins, else one few keystrokes
/// away. Nothing when none is near.
std::optional<std::string> nearest_name(const std::string& name,
                                        const std::vector<std::string>& candidates);

/// "; did you mean <prefix><nearest>?", or nothing.
std::string did_you_mean(const std::string& name, const std::vector<std::string>& candidates,
                         const std::string& prefix = "");

}  // namespace lockstep::inline internal
