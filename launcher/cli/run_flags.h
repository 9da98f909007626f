#pragma once

#include <string>
#include <vector>

namespace lockstep::inline internal {

/// The flags of `lockstep run` as given, or their PET_ variables; empty if neither is.
struct RunFlags {
  std::string nproc_per_node;
  bool standalone = false;
  bool no_python = false;
  bool module = false;
  bool run_path = false;
  std::string role;
  bool virtual_local_rank = false;

  std::string nnodes;
  std::string node_rank;
  std::string master_addr;
  std::string master_port;
  std::string local_addr;
  std::string rdzv_backend;
  std::string rdzv_endpoint;
  std::string rdzv_id;
  std::string rdzv_conf;
  std::string secret_file;

  std::string hosts;
  std::string ssh_command;
  std::string remote_lockstep;
  /// NAME or NAME=value each.
  std::vector<std::string> env;

  std::string max_restarts;
  std::string standby;
  std::string shutdown_timeout;
  std::string signals_to_handle;
  std::string notify_signals;
  std::string monitor_interval;

  std::string log_dir;
  std::string redirects;
  std::string tee;
  std::string local_ranks_filter;

  std::string start_method;
  std::string event_log_handler;
  std::string logs_specs;
  std::string numa_binding;
  std::string duplicate_stdout_filters;
  std::string duplicate_stderr_filters;

  /// Flags of the command line with full names: "--name" or "--name=value".
  std::vector<std::string> given;
  /// The program and its arguments.
  std::vector<std::string> program;
  /// Text of --help; if not empty, the other members are unset.
  std::string help;
};

/// Parses the command line of `lockstep run`.
/// Errors: UsageError.
RunFlags parse_run_flags(const std::vector<std::string>& arguments);

}  // namespace lockstep::inline internal
