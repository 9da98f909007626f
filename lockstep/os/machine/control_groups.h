#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/os/files/unique_fd.h"

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

// A control group (version 2) of a job's own, below the one that its launcher is in. Nothing that
// is started in it gets out by itself, whatever session and environment it makes for itself. The
// system lets a user make one where the group above is delegated to that user
// (https://systemd.io/CGROUP_DELEGATION), and kill it as a whole since Linux 5.14.

/// Where one of this name would be; empty where this process may make none. `root` stands for "/".
std::filesystem::path place_for_control_group(const std::string& name,
                                              const std::filesystem::path& root = "/");

/// Makes it, for SpawnOptions::control_group. Not valid where that fails, or `place` is empty.
UniqueFd make_control_group(const std::filesystem::path& place) noexcept;

/// Kills all that is in it and in those below, and removes it. Nothing where there is none.
void kill_control_group(const std::filesystem::path& place) noexcept;

/// Removes it; what still runs in it goes on in the group above.
void dissolve_control_group(const std::filesystem::path& place) noexcept;

}  // namespace lockstep::inline internal
