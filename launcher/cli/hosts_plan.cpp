#include "launcher/cli/hosts_plan.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "launcher/cli/run_options.h"
#include "launcher/command_line/split_arguments.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/text.h"

namespace lockstep::inline internal {
namespace {

using std::chrono::milliseconds;

// What a launcher may need beyond the time for its workers' end: those that hang in the kernel are
// given up after 10 s.
constexpr milliseconds kLauncherEnds{15'000};

// Of these the machines get their own, or none.
constexpr std::array kReplaced = {"hosts",       "ssh-command",  "remote-lockstep", "env",
                                  "secret-file", "nnodes",       "node-rank",       "master-addr",
                                  "master-port", "rdzv-backend", "rdzv-endpoint",   "rdzv-conf"};

bool is_replaced(const std::string& name) {
  return std::ranges::find(kReplaced, name) != kReplaced.end();
}

// "NNODES" for "PET_NNODES".
std::string flag_of_variable(std::string name) {
  std::ranges::transform(name, name.begin(), [](unsigned char c) {
    return c == '_' ? '-' : static_cast<char>(std::tolower(c));
  });
  return name;
}

// Set for this process, or for one place in a job.
bool is_of_here(const std::string& name) {
  for (const env::Variable* variable :
       {&env::kJobSecret, &env::kJobMark, &env::kStoreListenFd, &env::kSpawn}) {
    if (name == variable->name) return true;
  }
  constexpr std::string_view kFlag = "PET_";
  return name.starts_with(kFlag) && is_replaced(flag_of_variable(name.substr(kFlag.size())));
}

std::vector<std::string> environment_for(const RunFlags& flags, const HostsFacts& facts) {
  std::vector<std::string> lines = variables_for_hosts(facts.environment);
  const auto find = [&](const std::string& name) {
    return std::ranges::find_if(
        facts.environment, [&](const std::string& line) { return line.starts_with(name + "="); });
  };
  for (const std::string& given : flags.env) {
    if (given.empty() || given[0] == '=') {
      throw UsageError(concat("--env='", given, "': give NAME or NAME=VALUE"));
    }
    if (given.find('=') != std::string::npos) {
      lines.push_back(given);
    } else if (const auto line = find(given); line != facts.environment.end()) {
      lines.push_back(*line);
    } else {
      throw UsageError(
          concat("--env=", given, ": it is not set here; give --env=", given, "=VALUE"));
    }
  }
  lines.push_back(concat(env::kJobSecret.name, "=", facts.secret));
  return lines;
}

void check(const RunFlags& flags, const std::vector<RemoteHost>& hosts) {
  const auto refuse = [](const char* flag, const char* why) {
    throw UsageError(concat("--hosts with ", flag, ": ", why, "; drop one of them"));
  };
  if (flags.standalone) refuse("--standalone", "that is a job on this machine");
  if (!flags.node_rank.empty())
    refuse("--node-rank", "--hosts numbers the machines in their order");
  if (!flags.local_addr.empty() && hosts.size() > 1) {
    refuse("--local-addr", "no two machines have the same address");
  }
}

// In the order of their numbers, the machines meet at the first, by the name that ssh has for it.
std::vector<std::string> meeting_flags(const RunFlags& flags, const std::vector<RemoteHost>& hosts,
                                       std::size_t host, const HostsFacts& facts) {
  const bool may_change = flags.nnodes.find(':') != std::string::npos;
  const std::string backend =
      flags.rdzv_backend.empty() && may_change ? "c10d" : flags.rdzv_backend;
  const std::string nnodes = flags.nnodes.empty() ? std::to_string(hosts.size()) : flags.nnodes;
  std::vector<std::string> result = {concat("--nnodes=", nnodes)};
  if (!backend.empty()) result.push_back(concat("--rdzv-backend=", backend));
  std::string conf = flags.rdzv_conf;
  const bool numbered = backend.empty() || backend == "static";
  if (numbered) result.push_back(concat("--node-rank=", host));
  if (!flags.rdzv_endpoint.empty()) {
    result.push_back(concat("--rdzv-endpoint=", flags.rdzv_endpoint));
  } else if (nnodes != "1") {
    const std::string first =
        flags.master_addr.empty() ? hosts.front().address() : flags.master_addr;
    const std::string port =
        flags.master_port.empty() ? std::to_string(facts.port) : flags.master_port;
    result.push_back(concat("--rdzv-endpoint=[", first, "]:", port));
    const bool said = conf.find("is_host=") != std::string::npos;
    if (!numbered && !said) conf += concat(conf.empty() ? "" : ",", "is_host=", host == 0 ? 1 : 0);
  }
  if (!conf.empty()) result.push_back(concat("--rdzv-conf=", conf));
  return result;
}

std::vector<std::string> arguments_for(const RunFlags& flags, const std::vector<RemoteHost>& hosts,
                                       std::size_t host, const HostsFacts& facts) {
  const auto& slots = hosts[host].slots;
  std::vector<std::string> arguments;
  for (const std::string& flag : flags.given) {
    const std::string name = name_and_value(flag).first;
    if (!is_replaced(name) && !(slots && name == "nproc-per-node")) arguments.push_back(flag);
  }
  if (slots) arguments.push_back(concat("--nproc-per-node=", *slots));
  for (const std::string& flag : meeting_flags(flags, hosts, host, facts))
    arguments.push_back(flag);
  arguments.emplace_back("--");
  arguments.insert(arguments.end(), flags.program.begin(), flags.program.end());
  return arguments;
}

// As the machine will, so that what is wrong is said once, and before anything is started.
LaunchOptions resolve(const std::vector<std::string>& arguments, const HostsFacts& facts) {
  RunFlags flags = parse_run_flags(arguments);
  flags.hosts.clear();  // PET_HOSTS
  return resolve_run_options(
      flags, {.gpus = 1, .secret = facts.secret, .shutdown_timeout = facts.shutdown_timeout});
}

}  // namespace

std::vector<std::string> variables_for_hosts(const std::vector<std::string>& environment) {
  std::vector<std::string> lines;
  for (const std::string& line : environment) {
    const std::string name = line.substr(0, line.find('='));
    const bool ours = name.starts_with("LOCKSTEP_") || name.starts_with("PET_");
    if (ours && !is_of_here(name)) lines.push_back(line);
  }
  return lines;
}

std::vector<std::string> ssh_words(const std::string& ssh_command) {
  // None of them may wait for somebody at a terminal, or for a machine that is gone. A connection
  // that others share would outlive this job, with our ends of its pipes.
  constexpr const char* kDefault =
      "ssh -T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 "
      "-o ServerAliveCountMax=6 -o ControlMaster=no -o ControlPath=none";
  std::istringstream text(ssh_command.empty() ? kDefault : ssh_command);
  std::vector<std::string> words;
  for (std::string word; text >> word;) words.push_back(word);
  if (words.empty()) throw UsageError("--ssh-command: there is nothing in it; as in 'ssh -p 2222'");
  return words;
}

OverseeOptions plan_hosts(const RunFlags& flags, const std::vector<RemoteHost>& hosts,
                          const HostsFacts& facts) {
  check(flags, hosts);
  OverseeOptions options;
  options.ssh = {
      .command = ssh_words(flags.ssh_command),
      .lockstep = flags.remote_lockstep.empty() ? facts.lockstep : flags.remote_lockstep};
  const std::vector<std::string> environment = environment_for(flags, facts);
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    std::vector<std::string> arguments = arguments_for(flags, hosts, host, facts);
    const LaunchOptions resolved = resolve(arguments, facts);
    const RendezvousOptions& rendezvous = resolved.rendezvous;
    const auto count = static_cast<int>(hosts.size());
    if (count < rendezvous.min_nodes || count > rendezvous.max_nodes) {
      throw UsageError(
          concat("--nnodes=", flags.nnodes, ": --hosts names ", count_text(count, "machine")));
    }
    options.least_hosts = static_cast<std::size_t>(rendezvous.min_nodes);
    arguments.insert(arguments.begin(), "run");
    const milliseconds patience = resolved.shutdown_timeout + kLauncherEnds;
    options.commands.push_back({.host = hosts[host],
                                .request = {.arguments = arguments,
                                            .directory = facts.directory,
                                            .environment = environment,
                                            .marker = facts.marker,
                                            .silence = facts.silence,
                                            .patience = patience}});
    options.patience = patience;
    options.heartbeat_interval = heartbeat_interval(facts.silence);
  }
  return options;
}

void check_no_hosts_flags(const RunFlags& flags) {
  const char* flag = nullptr;
  if (!flags.ssh_command.empty()) flag = "--ssh-command";
  if (!flags.remote_lockstep.empty()) flag = "--remote-lockstep";
  if (!flags.env.empty()) flag = "--env";
  if (flag == nullptr) return;
  throw UsageError(
      concat(flag, " needs --hosts; without it, workers run here, with this environment"));
}

}  // namespace lockstep::inline internal
