#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Calls visit(folder) for this process's control group of a controller and for those above it,
/// which limit it too. Version 2 has one hierarchy, version 1 one per controller. `root` replaces
/// "/" in tests.
void for_each_control_group(const std::string& controller,
                            const std::function<void(const std::filesystem::path&)>& visit,
                            const std::filesystem::path& root = "/");

/// This process's control group of version 2; empty if that is not mounted.
std::filesystem::path own_control_group(const std::filesystem::path& root = "/");

/// Number of processors whose time this process's control groups (version 1 or 2) allow: the
/// minimum of their quotas. Empty: no limit.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

// A control group (version 2) of a job, below the one of its launcher. Processes started in it stay
// in it, also with another session or environment. A user can create one if the group above is
// delegated to that user (https://systemd.io/CGROUP_DELEGATION), and kill it as a whole since Linux
// 5.14.

/// Path of a control group of this name; empty if this process may not create one. `root` replaces
/// "/" in tests.
std::filesystem::path place_for_control_group(const std::string& name,
                                              const std::filesystem::path& root = "/");

/// Creates it, for SpawnOptions::control_group. Invalid if that fails, or `place` is empty.
UniqueFd make_control_group(const std::filesystem::path& place) noexcept;

/// Kills all processes in it and in the groups below, and removes it. No effect if it does not
/// exist.
void kill_control_group(const std::filesystem::path& place) noexcept;

/// Removes it; its processes move to the group above.
void dissolve_control_group(const std::filesystem::path& place) noexcept;

}  // namespace lockstep::inline internal
