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

/// The mark of a job on this machine, "<pid of its launcher>-<random>". Others may have the pid in
/// the same folder for temporary files: containers that share it. Of a job of several machines,
/// ".<job>" follows, which is the same on all of them, given the same endpoint and id, and another
/// for another job: DirectoryLock goes by it.
std::string make_job_mark(const LaunchOptions& options = {});

/// Makes the directory of a job's logs and error files: "<log directory>/<run id>_<random>", or a
/// temporary one. Errors: SystemError naming the log directory.
TemporaryDirectory make_job_directory(const LaunchOptions& options, const std::string& mark);

/// Whether it stays when the job has ended.
bool keeps_job_directory(const LaunchOptions& options);

/// The beginning of the name of the temporary directory with a job's control socket, in which
/// others find it.
std::string control_directory_prefix(const std::string& mark);

/// The pid of the launcher that made a directory of this name; nothing for another name.
std::optional<pid_t> launcher_of_control_directory(std::string_view name);

/// What the guard of a job removes: the directory of its control socket and its own, if that is
/// temporary, even where the launcher is killed while it makes one.
GuardedFiles guarded_files(const LaunchOptions& options, const std::string& mark);

}  // namespace lockstep::inline internal
