#include "launcher/cli/run_options.h"

#include <algorithm>

#include "launcher/cli/rendezvous_flags.h"
#include "launcher/command_line/flag_values.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/base/internal/text.h"
#include "lockstep/os/process/signals.h"

namespace lockstep::inline internal {
namespace {

int count_of_workers(const std::string& text, const RunFacts& facts) {
  if (text.empty()) return 1;
  if (text == "cpu") return facts.allowed_cpus;
  if (text == "auto") return facts.gpus > 0 ? facts.gpus : facts.allowed_cpus;
  if (text == "gpu") {
    if (facts.gpus > 0) return facts.gpus;
    throw UsageError(
        "--nproc-per-node=gpu: this machine has no GPU to use (no /dev/nvidia0, or "
        "CUDA_VISIBLE_DEVICES is empty); give a number");
  }
  const auto count = parse_number<int>(text);
  if (!count || *count < 1 || *count > kMostWorkers) {
    throw UsageError(concat("--nproc-per-node='", text, "': give a number of workers from 1 to ",
                            kMostWorkers, ", or auto, cpu or gpu"));
  }
  return *count;
}

Program program_of(const RunFlags& flags) {
  if (flags.program.empty()) {
    throw UsageError(
        "no program given; as in: lockstep run --standalone --nproc-per-node=2 ./train");
  }
  if (flags.no_python && flags.module) {
    throw UsageError("--module runs a Python module, which --no-python rules out; drop one");
  }
  Program program{.name = flags.program.front(),
                  .arguments = {flags.program.begin() + 1, flags.program.end()}};
  if (flags.module) {
    program.kind = Program::Kind::kPythonModule;
  } else if (flags.run_path || (program.name.ends_with(".py") && !flags.no_python)) {
    program.kind = Program::Kind::kPythonScript;
  }
  return program;
}

std::chrono::milliseconds shutdown_timeout_of(const RunFlags& flags, const RunFacts& facts) {
  const bool given = !flags.shutdown_timeout.empty();
  const std::string& text = given ? flags.shutdown_timeout : facts.shutdown_timeout;
  if (text.empty()) return LaunchOptions{}.shutdown_timeout;
  return seconds_of(given ? "--shutdown-timeout" : "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", text, 0);
}

std::vector<int> signals_of(const char* flag, const std::string& text) {
  std::vector<int> signals;
  for (const std::string& name : comma_list(text)) {
    const auto signal = signal_number(name);
    const bool possible = signal && *signal != SIGKILL && *signal != SIGSTOP && *signal != SIGCHLD;
    if (!possible) {
      throw UsageError(concat(flag, ": '", name,
                              "' is no signal that can be handled; as in SIGTERM,SIGINT,SIGUSR1"));
    }
    signals.push_back(*signal);
  }
  return signals;
}

std::string job_id_of(const std::string& text) {
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (std::ranges::none_of(text, is_control)) return text;
  throw UsageError("--rdzv-id: a line end or other control character is in it; give a name");
}

// torchrun's flags that change nothing here are checked as it does.
void check_torchrun_flags(const RunFlags& flags) {
  const auto interval = parse_number<double>(flags.monitor_interval);
  if (!flags.monitor_interval.empty() && (!interval || *interval <= 0)) {
    throw UsageError(
        concat("--monitor-interval='", flags.monitor_interval, "': give seconds greater than 0"));
  }
  const std::vector<std::string> methods = {"", "spawn", "fork", "forkserver"};
  if (std::find(methods.begin(), methods.end(), flags.start_method) == methods.end()) {
    throw UsageError(
        concat("--start-method='", flags.start_method, "': give spawn, fork or forkserver"));
  }
  if (!flags.logs_specs.empty() && flags.logs_specs != "default") {
    throw UsageError(concat("--logs-specs=", flags.logs_specs,
                            ": only default is supported; set --log-dir, --redirects and --tee"));
  }
}

bool prints_events(const RunFlags& flags) {
  const std::string& handler = flags.event_log_handler;
  if (handler == "console") return true;
  // torchrun's third is a handler of nothing too.
  if (handler.empty() || handler == "null" || handler == "dynamic_rendezvous") return false;
  throw UsageError(concat("--event-log-handler='", handler, "': give null or console"));
}

}  // namespace

LaunchOptions resolve_run_options(const RunFlags& flags, const RunFacts& facts) {
  check_torchrun_flags(flags);
  const JobPlace place = resolve_rendezvous(flags, facts.secret);
  LaunchOptions options;
  options.program = program_of(flags);
  options.worker_count = count_of_workers(flags.nproc_per_node, facts);
  options.rendezvous = place.rendezvous;
  options.master_address = place.master_address;
  options.master_port = place.master_port;
  if (!flags.role.empty()) options.role = flags.role;
  if (!flags.rdzv_id.empty()) {
    options.run_id = job_id_of(flags.rdzv_id);
    options.is_named = true;
  } else if (options.rendezvous.max_nodes == 1) {
    options.run_id = facts.random_id;
  }
  if (!flags.standby.empty()) options.standby_workers = int_of("--standby", flags.standby, 0);
  if (!flags.max_restarts.empty()) {
    options.max_restarts = int_of("--max-restarts", flags.max_restarts, 0);
  }
  const RendezvousOptions& rendezvous = options.rendezvous;
  options.agreement = concat("lockstep " LOCKSTEP_VERSION "; --nnodes=", rendezvous.min_nodes, ":",
                             rendezvous.max_nodes, "; --max-restarts=", options.max_restarts);
  options.shutdown_timeout = shutdown_timeout_of(flags, facts);
  if (!flags.signals_to_handle.empty()) {
    options.signals_to_handle = signals_of("--signals-to-handle", flags.signals_to_handle);
  }
  options.notify_signals = signals_of("--notify-signals", flags.notify_signals);
  for (const int signal : options.notify_signals) {
    if (std::ranges::count(options.signals_to_handle, signal) > 0) {
      throw UsageError(concat("--notify-signals: ", signal_name(signal),
                              " stops the job, by --signals-to-handle; name it in one of them"));
    }
  }
  options.log_directory = flags.log_dir;
  if (!flags.redirects.empty())
    options.redirects = parse_stream_map("--redirects", flags.redirects);
  if (!flags.tee.empty()) options.tee = parse_stream_map("--tee", flags.tee);
  options.console_ranks = local_ranks_of("--local-ranks-filter", flags.local_ranks_filter);
  options.copied_out = parse_line_filter(flags.duplicate_stdout_filters);
  options.copied_err = parse_line_filter(flags.duplicate_stderr_filters);
  options.prints_events = prints_events(flags);
  if (!flags.numa_binding.empty()) options.numa_binding = parse_numa_binding(flags.numa_binding);
  options.virtual_local_rank = flags.virtual_local_rank;
  return options;
}

}  // namespace lockstep::inline internal
