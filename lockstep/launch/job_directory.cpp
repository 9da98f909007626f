#include "lockstep/launch/job_directory.h"

#include <system_error>

#include <unistd.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/launch/worker_logs.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

bool is_temporary(const LaunchOptions& options) {
  return options.log_directory.empty() || options.log_directory == "/dev/null";
}

fs::path parent_of(const LaunchOptions& options) {
  if (is_temporary(options)) return temporary_folder();
  std::error_code error;
  fs::create_directories(options.log_directory, error);
  if (error) {
    throw SystemError(concat("make the log directory ", options.log_directory), error.value(),
                      "give --log-dir a directory that you may write to");
  }
  return fs::absolute(options.log_directory);
}

// A temporary directory is known by it as this launcher's.
std::string prefix_of(const LaunchOptions& options) {
  std::string name = is_temporary(options) ? concat("lockstep_", ::getpid()) : options.run_id;
  for (char& c : name) {
    if (c == '/') c = '_';
  }
  return name + "_";
}

}  // namespace

TemporaryDirectory make_job_directory(const LaunchOptions& options) {
  return {parent_of(options), prefix_of(options)};
}

GuardedFiles guarded_files(const LaunchOptions& options) {
  std::error_code error;
  const fs::path folder = fs::temp_directory_path(error);
  if (error) return {};
  // One prefix is the beginning of the other.
  return {.folder = folder,
          .prefix = keeps_job_directory(options) ? control_directory_prefix(::getpid())
                                                 : prefix_of(options)};
}

std::string control_directory_prefix(pid_t launcher) {
  return concat("lockstep_", launcher, "_control_");
}

bool keeps_job_directory(const LaunchOptions& options) {
  return writes_logs(options) || !is_temporary(options);
}

}  // namespace lockstep
