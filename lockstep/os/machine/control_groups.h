#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace lockstep::inline internal {

/// Calls visit(folder) for this process's control group of a controller and those above it, which
/// limit it too. Version 2 has one hierarchy, version 1 one for each controller. `root` stands for
/// "/".
void for_each_control_group(const std::string& controller,
                            const std::function<void(const std::filesystem::path&)>& visit,
                            const std::filesystem::path& root = "/");

/// This process's control group of version 2; empty where that is not mounted.
std::filesystem::path own_control_group(const std::filesystem::path& root = "/");

/// How many processors' time this process's control groups (version 1 or 2) let it use: the least
/// of theirs. Nothing where none limits it.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

}  // namespace lockstep::inline internal
