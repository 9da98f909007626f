#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <random>

#include <sys/socket.h>

#include "lockstep/agent/run_job.h"
#include "lockstep/base/concat.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/cli/command.h"
#include "lockstep/cli/run_flags.h"
#include "lockstep/cli/run_options.h"
#include "lockstep/cli/srun_step.h"
#include "lockstep/launch/console.h"
#include "lockstep/os/machine.h"
#include "lockstep/os/readable_file.h"
#include "lockstep/os/tcp_socket.h"

namespace lockstep {
namespace {

std::string random_id() {
  std::random_device random;
  std::string id;
  for (int word = 0; word < 4; ++word) {
    char digits[9];
    std::snprintf(digits, sizeof(digits), "%08x", random());
    id += digits;
  }
  return id;
}

// Devices that workers may use: CUDA_VISIBLE_DEVICES narrows what the machine has.
int usable_gpus() {
  const int present = nvidia_device_count();
  const auto visible = env::text_or_empty(env::kCudaVisibleDevices);
  if (!visible) return present;
  if (visible->empty()) return 0;
  const auto listed = std::count(visible->begin(), visible->end(), ',') + 1;
  return std::min(present, static_cast<int>(listed));
}

// Without the line end that editors leave.
std::string job_secret(const std::string& file) {
  if (file.empty()) return env::text(env::kJobSecret).value_or("");
  const ReadableFile opened(file);
  constexpr std::uint64_t kLongestBytes = 4'096;
  std::string secret(std::min(opened.size_bytes(), kLongestBytes), '\0');
  opened.read(0, secret.data(), secret.size());
  while (!secret.empty() && std::isspace(static_cast<unsigned char>(secret.back()))) {
    secret.pop_back();
  }
  if (secret.empty()) throw UsageError(concat("--secret-file=", file, ": there is nothing in it"));
  return secret;
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
  if (env::text(env::kEnableFileTimer) == "1") {
    say("TORCHELASTIC_ENABLE_FILE_TIMER=1: there is no such timer here, so torch's FileTimerClient "
        "will find none; collectives have deadlines of their own");
  }
  meet_in_step(flags, srun_step());
  const LaunchOptions options = resolve_run_options(
      flags, {.allowed_cpus = allowed_cpu_count(),
              .gpus = usable_gpus(),
              .random_id = random_id(),
              .secret = job_secret(flags.secret_file),
              .shutdown_timeout = env::text(env::kShutdownTimeout).value_or("")});
  return run_job(options, health_socket(flags.local_addr));
}

}  // namespace lockstep
