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

/// What each worker runs.
struct Program {
  enum class Kind { kExecutable, kPythonScript, kPythonModule };

  Kind kind = Kind::kExecutable;
  std::string name{};
  /// "${local_rank}" in them is replaced.
  std::vector<std::string> arguments{};
};

struct HostAndPort {
  std::string host{};
  std::uint16_t port = 0;
  bool operator==(const HostAndPort&) const = default;
};

/// How the machines of a job find each other.
struct RendezvousOptions {
  enum class Backend {
    kStatic,  ///< numbered by the user
    kC10d,    ///< numbered as they come
    kEtcd,    ///< the same, and whoever serves the rendezvous may be lost
  };

  Backend backend = Backend::kStatic;
  int min_nodes = 1;
  int max_nodes = 1;
  /// kStatic: the rank of this machine.
  int node_rank = 0;
  /// Where the agents meet: an address of the machine whose agent serves the rendezvous.
  std::string host{};
  std::uint16_t port = 0;
  /// kEtcd: where etcd answers, in place of these; and what the names of its keys begin with.
  std::vector<HostAndPort> etcd{};
  std::string etcd_prefix = "/lockstep";
  /// Whether that is this machine; nothing: found out.
  std::optional<bool> is_host{};
  /// The address of this machine for others; empty: found out.
  std::string own_address{};
  /// What only agents of the job know, and who may join without: see docs/security.md.
  std::string secret{};
  RendezvousTimeouts timeouts{};
};

/// Of a machine: each is a process, and the job ends where one cannot be made.
inline constexpr int kMostWorkers = 4'096;

/// A job as this machine sees it, with `worker_count` workers here.
struct LaunchOptions {
  Program program{};

  int worker_count = 1;
  std::string role = "default";
  std::string run_id = "none";
  /// Somebody gave it that id.
  bool is_named = false;
  RendezvousOptions rendezvous{};
  /// See RendezvousNode.
  std::string agreement{};
  /// Where rank 0 serves the store of a job on one machine. Port 0: a free one for each generation.
  std::string master_address = "127.0.0.1";
  std::uint16_t master_port = 0;

  int max_restarts = 0;
  /// How many workers more than there are places are kept on this machine, for programs that wait
  /// for one.
  int standby_workers = 0;
  /// From the first SIGTERM to SIGKILL.
  std::chrono::milliseconds shutdown_timeout{30'000};
  /// These stop the job when the launcher gets them, and are passed on.
  std::vector<int> signals_to_handle{SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  /// These are passed on to the workers, but not to what they started, and stop nothing.
  std::vector<int> notify_signals{};
  bool is_notice(int signal) const { return std::ranges::count(notify_signals, signal) > 0; }

  /// Where logs and error files go. Empty: a temporary directory. "/dev/null": no logs.
  std::string log_directory{};
  /// Streams that go to log files, and those that go there and to the console.
  StreamMap redirects{};
  StreamMap tee{};
  /// Local ranks whose output reaches the console. Empty: all.
  std::vector<int> console_ranks{};
  /// Of the lines that `tee` shows, those that are written to the generation's filtered_stdout.log
  /// and filtered_stderr.log too.
  LineFilter copied_out{};
  LineFilter copied_err{};
  /// Prints what happens to the workers on stderr, as torchrun's events.
  bool prints_events = false;
  /// Which of this machine's processors each worker may use.
  NumaBinding numa_binding = NumaBinding::kNone;
  /// Each worker sees one device and LOCAL_RANK=0.
  bool virtual_local_rank = false;
};

}  // namespace lockstep::inline internal
