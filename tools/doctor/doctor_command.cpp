#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <sstream>

#include "launcher/cli/hosts_plan.h"
#include "launcher/command_line/endpoint.h"
#include "launcher/command_line/program_beside.h"
#include "launcher/remote/overseer.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/base/internal/random_id.h"
#include "lockstep/job/internal/job_port.h"
#include "tools/commands.h"
#include "tools/doctor/doctor_flags.h"
#include "tools/doctor/doctor_meeting.h"
#include "tools/doctor/gather_facts.h"
#include "tools/doctor/judge_machines.h"
#include "tools/doctor/reach.h"

namespace lockstep::inline internal {
namespace {

constexpr const char* kNoMachine = "";

GatherOptions gather_options(const DoctorFlags& flags) {
  return {.towards = flags.towards,
          .own_address = flags.local_addr,
          .program = flags.program,
          .lockstep_version = LOCKSTEP_VERSION};
}

int print(const std::vector<Finding>& findings, const DoctorFlags& flags) {
  const std::string text =
      flags.json
          ? json_of(findings)
          : text_of(flags.hosts.empty() && flags.nnodes.empty() ? findings : summarized(findings));
  std::fputs(text.c_str(), stdout);
  return has_failed(findings) ? kExitFailure : 0;
}

// Runs `lockstep` with these arguments on each machine over ssh and collects its output.
Overseen ask_hosts(const DoctorFlags& flags, const std::vector<RemoteHost>& hosts,
                   const std::vector<std::vector<std::string>>& arguments) {
  const std::string marker = random_id();
  OverseeOptions options;
  const std::string own = (program_folder() / "lockstep").string();
  options.ssh = {.command = ssh_words(flags.ssh_command),
                 .lockstep = flags.remote_lockstep.empty() ? own : flags.remote_lockstep};
  options.collects = true;
  // What ssh needs.
  constexpr std::chrono::milliseconds kStart{5'000};
  options.time_limit = 2 * flags.timeout + kStart;
  options.patience = flags.timeout;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (arguments[i].empty()) continue;
    options.commands.push_back({.host = hosts[i],
                                .request = {.arguments = arguments[i],
                                            .directory = std::filesystem::current_path().string(),
                                            .environment = variables_for_hosts(env::everything()),
                                            .marker = marker,
                                            .patience = flags.timeout}});
  }
  return oversee(options);
}

std::string last_line(const std::string& text) {
  std::istringstream lines(text);
  std::string last;
  for (std::string line; std::getline(lines, line);) last = line;
  return last;
}

std::vector<ExaminedMachine> gather_from(const DoctorFlags& flags,
                                         const std::vector<RemoteHost>& hosts) {
  std::vector<std::string> report = {"doctor", "--report",
                                     concat("--towards=", hosts.front().address())};
  if (!flags.program.empty()) report.insert(report.end(), {"--", flags.program});
  const Overseen seen = ask_hosts(flags, hosts, {hosts.size(), report});
  std::vector<ExaminedMachine> machines(hosts.size());
  for (const Overseen::End& end : seen.ends) {
    ExaminedMachine& machine = machines[end.host];
    machine.name = hosts[end.host].name;
    machine.facts = decode<MachineFacts>(last_line(seen.collected[end.host]));
    if (machine.facts) continue;
    machine.trouble = end.end.kind == HostEnd::Kind::kStopped ? "did not answer within the timeout"
                      : end.end.reason.empty()
                          ? concat("lockstep exited with code ", end.end.status, " there")
                          : end.end.reason;
  }
  if (seen.stop_signal) throw Error("stopped");
  return machines;
}

void have_call_each_other(const DoctorFlags& flags, const std::vector<RemoteHost>& hosts,
                          std::vector<ExaminedMachine>& machines) {
  // Different ports, as two names may be of one machine.
  std::vector<std::uint16_t> ports;
  for (std::size_t i = 0, first = random_number(); i < hosts.size(); ++i) {
    ports.push_back(static_cast<std::uint16_t>(port_of_number(first + i)));
  }
  const std::string token = random_id();
  std::vector<std::vector<std::string>> arguments(hosts.size());
  std::vector<std::size_t> asked;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (!machines[i].facts) continue;
    asked.push_back(i);
    arguments[i] = {"doctor", concat("--timeout=", flags.timeout.count() / 1000.0),
                    concat("--reach=", encode(reach_plan(machines, i, ports, token)))};
  }
  if (asked.size() < 2) return;
  const Overseen seen = ask_hosts(flags, hosts, arguments);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    machines[asked[i]].reach = decode<ReachReport>(last_line(seen.collected[i]));
  }
  if (seen.stop_signal) throw Error("stopped");
}

std::vector<Finding> examine_hosts(const DoctorFlags& flags) {
  const std::vector<RemoteHost> hosts = read_hosts(flags.hosts);
  std::vector<ExaminedMachine> machines = gather_from(flags, hosts);
  have_call_each_other(flags, hosts, machines);
  return judge_machines(machines, hosts.size() > 1 ? hosts.front().address() : "");
}

// After a failed rendezvous: this machine may be the cause.
std::vector<Finding> examine_one_of_several(const DoctorFlags& flags) {
  GatherOptions options = gather_options(flags);
  options.towards = parse_endpoint(flags.rdzv_endpoint).host;
  std::vector<Finding> findings = judge_machine(gather_facts(options), kNoMachine, true);
  findings.push_back({.level = Finding::Level::kFail,
                      .subject = "machines",
                      .text = concat("the rendezvous of ", flags.nnodes,
                                     " machines failed; only this one was checked"),
                      .cure = "start the same command on each, and see the message above"});
  return findings;
}

int print_reach(const DoctorFlags& flags) {
  const auto plan = decode<ReachPlan>(flags.reach);
  if (!plan) throw UsageError("--reach is internal: lockstep doctor passes it to other machines");
  std::puts(encode(reach(*plan, Deadline::after(flags.timeout))).c_str());
  return 0;
}

}  // namespace

int doctor_command(const std::vector<std::string>& arguments) {
  const DoctorFlags flags = parse_doctor_flags(arguments);
  if (!flags.help.empty()) {
    std::fputs(flags.help.c_str(), stdout);
    return 0;
  }
  if (flags.report) {
    std::puts(encode(gather_facts(gather_options(flags))).c_str());
    return 0;
  }
  if (!flags.reach.empty()) return print_reach(flags);
  if (!flags.meet.empty()) {
    take_part_in_meeting(flags);
    return 0;
  }
  if (!flags.nnodes.empty()) {
    const auto findings = examine_by_meeting(flags);
    return print(findings ? *findings : examine_one_of_several(flags), flags);
  }
  if (!flags.hosts.empty()) return print(examine_hosts(flags), flags);
  return print(judge_machine(gather_facts(gather_options(flags)), kNoMachine, false), flags);
}

}  // namespace lockstep::inline internal
