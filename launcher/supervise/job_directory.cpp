#include "launcher/supervise/job_directory.h"

#include <cstdint>
#include <system_error>

#include <unistd.h>

#include "launcher/logs/worker_logs.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/base/internal/random_id.h"

namespace lockstep::inline internal {
namespace {

namespace fs = std::filesystem;

// "lockstep_<mark>_…", "lockstep_<mark>_control_…".
constexpr std::string_view kBegin = "lockstep_";
constexpr std::string_view kControl = "control_";

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

std::string temporary_prefix(const std::string& mark) {
  return concat(kBegin, mark, "_");
}

std::string prefix_of(const LaunchOptions& options, const std::string& mark) {
  if (is_temporary(options)) return temporary_prefix(mark);
  std::string name = options.run_id;
  for (char& c : name) {
    if (c == '/') c = '_';
  }
  return name + "_";
}

// Where launchers meet, and as what job: others that did so now would be in this job (FNV-1a).
std::string hash_of_job(const LaunchOptions& options) {
  const RendezvousOptions& rendezvous = options.rendezvous;
  std::string text = concat(options.run_id, "\n", rendezvous.host, " ", rendezvous.port);
  for (const HostAndPort& place : rendezvous.etcd)
    text += concat("\n", place.host, " ", place.port);
  if (!rendezvous.etcd.empty()) text += "\n" + rendezvous.etcd_prefix;
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return concat(hash);
}

}  // namespace

std::string make_job_mark(const LaunchOptions& options) {
  const std::string mark = concat(::getpid(), "-", random_number());
  return options.rendezvous.max_nodes > 1 ? concat(mark, ".", hash_of_job(options)) : mark;
}

TemporaryDirectory make_job_directory(const LaunchOptions& options, const std::string& mark) {
  return {parent_of(options), prefix_of(options, mark)};
}

GuardedFiles guarded_files(const LaunchOptions& options, const std::string& mark) {
  std::error_code error;
  const fs::path folder = fs::temp_directory_path(error);
  if (error) return {};
  // One prefix is the beginning of the other.
  return {.folder = folder,
          .prefix = keeps_job_directory(options) ? control_directory_prefix(mark)
                                                 : temporary_prefix(mark)};
}

std::string control_directory_prefix(const std::string& mark) {
  return concat(temporary_prefix(mark), kControl);
}

std::optional<pid_t> launcher_of_control_directory(std::string_view name) {
  if (!name.starts_with(kBegin)) return std::nullopt;
  name.remove_prefix(kBegin.size());
  const std::size_t dash = name.find('-');
  const std::size_t end = name.find('_');
  if (dash >= end || end == std::string_view::npos || !name.substr(end + 1).starts_with(kControl)) {
    return std::nullopt;
  }
  return parse_number<pid_t>(std::string(name.substr(0, dash)));
}

bool keeps_job_directory(const LaunchOptions& options) {
  return writes_logs(options) || !is_temporary(options);
}

}  // namespace lockstep::inline internal
