#pragma once

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/core_binding.h"
#include "launcher/job/line_filter.h"
#include "launcher/job/rendezvous_timeouts.h"
#include "launcher/job/stream_map.h"

namespace lockstep::inline internal {

/// The program of the workers.
struct Program {
  enum class Kind { kExecutable, kPythonScript, kPythonModule };

  Kind kind = Kind::kExecutable;
  std::string name{};
  /// "${local_rank}" in an argument is replaced.
  std::vector<std::string> arguments{};
};

/// A host and a port.
struct HostAndPort {
  std::string host{};
  std::uint16_t port = 0;
  bool operator==(const HostAndPort&) const = default;
};

/// How the machines of a job find each other.
struct RendezvousOptions {
  enum class Backend {
    kStatic,  ///< the user numbers the machines
    kC10d,    ///< machines are numbered in the order in which they join
    kEtcd,    ///< the same; the machine that serves the rendezvous may fail
  };

  Backend backend = Backend::kStatic;
  int min_nodes = 1;
  int max_nodes = 1;
  /// kStatic: node rank of this machine.
  int node_rank = 0;
  /// Endpoint of the rendezvous: an address of the machine whose agent serves it.
  std::string host{};
  std::uint16_t port = 0;
  /// kEtcd: etcd's endpoints, used instead of `host`.
  std::vector<HostAndPort> etcd{};
  /// kEtcd: prefix of its keys.
  std::string etcd_prefix = "/lockstep";
  /// Whether this machine is the endpoint's; empty: found out.
  std::optional<bool> is_host{};
  /// This machine's address for the others; empty: found out.
  std::string own_address{};
  /// The secret of the job's agents; docs/security.md says which jobs need none.
  std::string secret{};
  RendezvousTimeouts timeouts{};
};

/// Upper bound of workers on a machine; each is a process, and the job ends if one cannot be
/// created.
inline constexpr int kMostWorkers = 4'096;

/// A job on this machine.
struct LaunchOptions {
  Program program{};

  /// Number of workers on this machine.
  int worker_count = 1;
  std::string role = "default";
  std::string run_id = "none";
  /// The user gave the job its id.
  bool is_named = false;
  RendezvousOptions rendezvous{};
  /// See RendezvousNode::agreement.
  std::string agreement{};
  /// Address at which rank 0 serves the store of a job on one machine.
  std::string master_address = "127.0.0.1";
  /// Port of the store; 0: a free one for each generation.
  std::uint16_t master_port = 0;

  int max_restarts = 0;
  /// Number of standby workers on this machine, for programs that wait for a rank.
  int standby_workers = 0;
  /// Time from SIGTERM to SIGKILL.
  std::chrono::milliseconds shutdown_timeout{30'000};
  /// Signals to the launcher that stop the job; the launcher forwards them to the workers.
  std::vector<int> signals_to_handle{SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  /// Signals that the launcher forwards to the workers, not to processes that they started, without
  /// stopping the job.
  std::vector<int> notify_signals{};
  bool is_notice(int signal) const { return std::ranges::count(notify_signals, signal) > 0; }

  /// Directory of logs and error files. Empty: a temporary directory. "/dev/null": no logs.
  std::string log_directory{};
  /// Streams that are written to log files only.
  StreamMap redirects{};
  /// Streams that are written to log files and to the console.
  StreamMap tee{};
  /// Local ranks whose output is shown on the console. Empty: all.
  std::vector<int> console_ranks{};
  /// Lines of `tee` that are also written to the generation's filtered_stdout.log and
  /// filtered_stderr.log.
  LineFilter copied_out{};
  LineFilter copied_err{};
  /// Print torchrun's events on standard error.
  bool prints_events = false;
  /// Which of this machine's processors each worker may use.
  NumaBinding numa_binding = NumaBinding::kNone;
  /// Each worker sees one device and LOCAL_RANK=0.
  bool virtual_local_rank = false;
};

}  // namespace lockstep::inline internal
