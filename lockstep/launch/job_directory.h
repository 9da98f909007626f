#pragma once

#include <filesystem>
#include <string>

#include <sys/types.h>

#include "lockstep/launch/group_guard.h"
#include "lockstep/launch/launch_options.h"
#include "lockstep/os/temporary_directory.h"

namespace lockstep {

/// Makes the directory of a job's logs and error files: "<log directory>/<run id>_<random>", or a
/// temporary one. Errors: SystemError naming the log directory.
TemporaryDirectory make_job_directory(const LaunchOptions& options);

/// Whether it stays when the job has ended.
bool keeps_job_directory(const LaunchOptions& options);

/// The beginning of the name of the temporary directory with a launcher's control socket, in which
/// others find it.
std::string control_directory_prefix(pid_t launcher);

/// What the guard of a job removes: the directory of its control socket and its own, if that is
/// temporary, even where the launcher is killed while it makes one.
GuardedFiles guarded_files(const LaunchOptions& options);

}  // namespace lockstep
