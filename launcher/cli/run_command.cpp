#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include <sys/socket.h>

#include "launcher/cli/command.h"
#include "launcher/cli/hosts_plan.h"
#include "launcher/cli/launched_job.h"
#include "launcher/cli/read_job_secret.h"
#include "launcher/cli/run_flags.h"
#include "launcher/cli/run_job.h"
#include "launcher/cli/run_options.h"
#include "launcher/command_line/program_beside.h"
#include "launcher/job/console.h"
#include "launcher/remote/overseer.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/random_id.h"
#include "lockstep/job/internal/job_port.h"
#include "lockstep/os/machine/machine.h"
#include "lockstep/os/socket/tcp_socket.h"

namespace lockstep::inline internal {
namespace {

// Devices that workers may use: CUDA_VISIBLE_DEVICES narrows what the machine has.
int usable_gpus() {
  const int present = nvidia_device_count();
  const auto visible = env::text_or_empty(env::kCudaVisibleDevices);
  if (!visible) return present;
  if (visible->empty()) return 0;
  const auto listed = std::count(visible->begin(), visible->end(), ',') + 1;
  return std::min(present, static_cast<int>(listed));
}

// The job of a machine that starts launchers on others and takes part by none.
int run_on_hosts(const RunFlags& flags) {
  const std::string given = read_job_secret(flags.secret_file);
  const OverseeOptions options =
      plan_hosts(flags, read_hosts(flags.hosts),
                 {.secret = given.empty() ? random_id() + random_id() : given,
                  .directory = std::filesystem::current_path().string(),
                  .environment = env::everything(),
                  .lockstep = (program_folder() / "lockstep").string(),
                  .port = port_of_number(random_number()),
                  .marker = random_id(),
                  .silence = env::seconds(env::kHostsSilence).value_or(kLongestSilence),
                  .shutdown_timeout = env::text(env::kShutdownTimeout).value_or("")});
  const Overseen seen = oversee(options);
  std::vector<HostEnd> ends;
  for (const Overseen::End& end : seen.ends) ends.push_back(end.end);
  return job_status(ends, seen.stop_signal);
}

// Where the job's health is told, if anywhere.
UniqueFd health_socket(const std::string& local_address) {
  const auto port = env::integer(env::kHealthCheckPort);
  if (!port) return UniqueFd();
  const std::string setting = concat(env::kHealthCheckPort.name, "=", *port);
  if (*port < 1 || *port > 65'535) throw UsageError(setting + ": give a port from 1 to 65535");
  const std::string host = local_address.empty() ? "127.0.0.1" : local_address;
  constexpr int kBacklog = 128;
  try {
    UniqueFd socket = bind_tcp(host, static_cast<std::uint16_t>(*port));
    if (::listen(socket.get(), kBacklog) == 0) return socket;
    throw SystemError("listen", errno);
  } catch (const SystemError& error) {
    throw SystemError(concat(setting, ": listen at ", host), error.errno_value(),
                      error.errno_value() == EADDRINUSE
                          ? "another program listens there; choose another port"
                          : "choose a port that you may use, and by --local-addr an address of "
                            "this machine");
  }
}

}  // namespace

int run_command(const std::vector<std::string>& arguments) {
  RunFlags flags = parse_run_flags(arguments);
  if (!flags.help.empty()) {
    std::fputs(flags.help.c_str(), stdout);
    return 0;
  }
  if (!flags.hosts.empty()) return run_on_hosts(flags);
  check_no_hosts_flags(flags);
  if (env::text(env::kEnableFileTimer) == "1") {
    say("TORCHELASTIC_ENABLE_FILE_TIMER=1 is not supported: FileTimerClient finds no timer; "
        "LOCKSTEP_TIMEOUT_S sets the timeout of collectives");
  }
  const auto own_host = [&] {
    return flags.local_addr.empty() ? local_address_towards(host_name()) : flags.local_addr;
  };
  meet_in_job(flags, launched_job(), own_host, port_of_number(random_number()));
  const LaunchOptions options = resolve_run_options(
      flags, {.allowed_cpus = allowed_cpu_count(),
              .gpus = usable_gpus(),
              .random_id = random_id(),
              .secret = read_job_secret(flags.secret_file),
              .shutdown_timeout = env::text(env::kShutdownTimeout).value_or("")});
  return run_job(options, health_socket(flags.local_addr));
}

}  // namespace lockstep::inline internal
