#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/launch/core_binding.h"
#include "lockstep/launch/line_filter.h"
#include "lockstep/launch/stream_map.h"

namespace lockstep {

/// What each worker runs.
struct Program {
  enum class Kind { kExecutable, kPythonScript, kPythonModule };

  Kind kind = Kind::kExecutable;
  std::string name{};
  /// "${local_rank}" in them is replaced.
  std::vector<std::string> arguments{};
};

/// A job as this machine sees it: `worker_count` workers here, as many on each other machine.
struct LaunchOptions {
  Program program{};

  int worker_count = 1;
  int node_count = 1;
  int node_rank = 0;
  std::string role = "default";
  std::string run_id = "none";
  /// Where rank 0 serves the store. Port 0: a free one for each attempt (one machine only).
  std::string master_address = "127.0.0.1";
  std::uint16_t master_port = 0;

  int max_restarts = 0;
  /// From the first SIGTERM to SIGKILL.
  std::chrono::milliseconds shutdown_timeout{30'000};
  /// These stop the job when the launcher gets them, and are passed on.
  std::vector<int> signals_to_handle{SIGTERM, SIGINT, SIGHUP, SIGQUIT};

  /// Where logs and error files go. Empty: a temporary directory. "/dev/null": no logs.
  std::string log_directory{};
  /// Streams that go to log files, and those that go there and to the console.
  StreamMap redirects{};
  StreamMap tee{};
  /// Local ranks whose output reaches the console. Empty: all.
  std::vector<int> console_ranks{};
  /// Of the lines that `tee` shows, those that are written to the attempt's filtered_stdout.log and
  /// filtered_stderr.log too.
  LineFilter copied_out{};
  LineFilter copied_err{};
  /// Prints what happens to the workers on stderr, as torchrun's events.
  bool prints_events = false;
  /// Which of this machine's processors each worker may use.
  NumaBinding numa_binding = NumaBinding::kNone;
  /// Each worker sees one device and LOCAL_RANK=0.
  bool virtual_local_rank = false;

  int world_size() const { return node_count * worker_count; }
  int rank_of(int local_rank) const { return node_rank * worker_count + local_rank; }
};

}  // namespace lockstep
