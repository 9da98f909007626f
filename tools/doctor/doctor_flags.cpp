#include "tools/doctor/doctor_flags.h"

#include <array>

#include "launcher/command_line/command_help.h"
#include "launcher/command_line/flag_values.h"
#include "launcher/command_line/split_arguments.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"

namespace lockstep::inline internal {
namespace {

struct TextFlag {
  const char* name;
  std::string DoctorFlags::*value;
  bool in_full = false;
};

constexpr std::array kTextFlags = {
    TextFlag{"hosts", &DoctorFlags::hosts},
    TextFlag{"ssh-command", &DoctorFlags::ssh_command},
    TextFlag{"remote-lockstep", &DoctorFlags::remote_lockstep},
    TextFlag{"nnodes", &DoctorFlags::nnodes},
    TextFlag{"rdzv-endpoint", &DoctorFlags::rdzv_endpoint},
    TextFlag{"secret-file", &DoctorFlags::secret_file},
    TextFlag{"local-addr", &DoctorFlags::local_addr},
    TextFlag{"towards", &DoctorFlags::towards, true},
    TextFlag{"reach", &DoctorFlags::reach, true},
    TextFlag{"meet", &DoctorFlags::meet, true},
};

HelpEntry value_flag(const char* name, const char* value, const char* text) {
  return {.name = name, .value = value, .text = text};
}

CommandHelp doctor_help() {
  return {
      .name = "lockstep doctor",
      .usage = "[options] [program]",
      .description =
          R"(Checks what a job needs of this machine, or of several machines together, and says what to fix.

Each machine: host name, interfaces, /dev/shm, temporary files, limits of open files, processes and
locked memory, processor quota, memory, versions, GPUs; the program's libraries and LibTorch.
Several: connections in both directions, clock skew, differing MTU, versions and programs.)",
      .groups =
          {{.title = "Several machines, checked from here by ssh",
            .entries = {value_flag("hosts", "FILE|LIST",
                                   "the machines, as for lockstep run --hosts"),
                        value_flag("ssh-command", "COMMAND",
                                   "how to call ssh (default: as lockstep run does)"),
                        value_flag("remote-lockstep", "PATH",
                                   "lockstep on the machines (default: the path of this one)")}},
           {.title = "Several machines, with the same command started on each",
            .entries = {value_flag("nnodes", "N", "number of machines"),
                        value_flag("rdzv-endpoint", "HOST[:PORT]",
                                   "address of the machine that serves the rendezvous"),
                        value_flag("secret-file", "FILE",
                                   "the job's secret (default: LOCKSTEP_JOB_SECRET)"),
                        value_flag("local-addr", "HOST",
                                   "address at which the other machines reach this one (default: "
                                   "the\nsource address of the route to the endpoint)")}},
           {.title = "Both",
            .entries = {value_flag("timeout", "SECONDS",
                                   "timeout of all connection checks together (default 10); the "
                                   "rendezvous\nwaits 6 times as long"),
                        {.name = "json", .text = "print all findings as JSON"},
                        {.name = "help", .letter = 'h', .text = "show this text"}}}},
      .notes = R"(Exit code: 0 when no check failed, 1 otherwise, 2 for a wrong command line.

Examples:
  lockstep doctor --hosts=a,b ./train
  lockstep doctor --nnodes=2 --rdzv-endpoint=10.0.0.1 --secret-file=job.secret    # on each)"};
}

// What --help shows, and what one launcher asks of another.
std::vector<FlagName> known_flags() {
  std::vector<FlagName> known = flag_names(doctor_help());
  known.push_back({.name = "report", .in_full = true});
  for (const TextFlag& flag : kTextFlags) {
    if (flag.in_full) known.push_back({.name = flag.name, .takes_value = true, .in_full = true});
  }
  return known;
}

void take(DoctorFlags& flags, const std::string& name, const std::string& value) {
  if (name == "help") flags.help = help_text(doctor_help());
  if (name == "json") flags.json = true;
  if (name == "report") flags.report = true;
  if (name == "timeout") flags.timeout = seconds_of("--timeout", value, 0.001, 600);
  for (const TextFlag& flag : kTextFlags) {
    if (name == flag.name) flags.*flag.value = value;
  }
}

void check(const DoctorFlags& flags) {
  if (!flags.hosts.empty() && !(flags.nnodes + flags.rdzv_endpoint + flags.local_addr).empty()) {
    throw UsageError(
        "--hosts starts lockstep doctor on the machines by ssh; --nnodes, --rdzv-endpoint and "
        "--local-addr are for lockstep doctor that you start on each machine yourself; give only "
        "one "
        "of the two");
  }
  if (flags.nnodes.empty() != flags.rdzv_endpoint.empty()) {
    throw UsageError(
        "give both --nnodes=N and --rdzv-endpoint=HOST[:PORT], the same on each machine");
  }
  const auto nodes = parse_number<int>(flags.nnodes);
  if (!flags.nnodes.empty() && (!nodes || *nodes < 2)) {
    throw UsageError(concat("--nnodes='", flags.nnodes, "': give the number of machines, from 2"));
  }
}

}  // namespace

DoctorFlags parse_doctor_flags(const std::vector<std::string>& arguments) {
  DoctorFlags flags;
  if (arguments == std::vector<std::string>{kDescribeCommand}) {
    flags.help = describe(doctor_help());
    return flags;
  }
  const SplitArguments split = split_arguments(arguments, known_flags());
  for (const std::string& flag : split.flags) {
    const auto [name, value] = name_and_value(flag);
    take(flags, name, value);
  }
  if (!split.program.empty()) flags.program = split.program.front();
  check(flags);
  return flags;
}

}  // namespace lockstep::inline internal
