#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "launcher/job/launch_options.h"
#include "launcher/supervise/group_guard.h"
#include "lockstep/os/files/temporary_directory.h"

namespace lockstep::inline internal {

/// The mark of a job on this machine, "<pid of its launcher>-<random>": containers that share a
/// folder for temporary files may have equal pids. For a job of several machines ".<job>" follows,
/// which depends on endpoint and id and is equal on all its machines; DirectoryLock uses it.
std::string make_job_mark(const LaunchOptions& options = {});

/// Creates the directory of a job's logs and error files: "<log directory>/<run id>_<random>", or a
/// temporary one.
/// Errors: SystemError with the log directory.
TemporaryDirectory make_job_directory(const LaunchOptions& options, const std::string& mark);

/// Whether the directory remains after the job.
bool keeps_job_directory(const LaunchOptions& options);

/// Prefix of the temporary directory with a job's control socket, by which other programs find it.
std::string control_directory_prefix(const std::string& mark);

/// The pid of the launcher that made a directory of this name; nothing for another name.
std::optional<pid_t> launcher_of_control_directory(std::string_view name);

/// Files that the job's guard removes: the directory of its control socket, and its own directory
/// if that is temporary, even if the launcher is killed while it creates one.
GuardedFiles guarded_files(const LaunchOptions& options, const std::string& mark);

}  // namespace lockstep::inline internal
