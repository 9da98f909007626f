#include "tools/doctor/doctor_flags.h"

#include <array>

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

std::vector<FlagName> known_flags() {
  std::vector<FlagName> known = {{.name = "help", .letter = 'h'},
                                 {.name = "json"},
                                 {.name = "report", .in_full = true},
                                 {.name = "timeout", .takes_value = true}};
  for (const TextFlag& flag : kTextFlags) {
    known.push_back({.name = flag.name, .takes_value = true, .in_full = flag.in_full});
  }
  return known;
}

void take(DoctorFlags& flags, const std::string& name, const std::string& value) {
  if (name == "help") flags.help = true;
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
        "--hosts reaches the machines by ssh; --nnodes, --rdzv-endpoint and --local-addr are for "
        "lockstep doctor on each of them; drop one or the other");
  }
  if (flags.nnodes.empty() != flags.rdzv_endpoint.empty()) {
    throw UsageError(
        "machines that are to find each other need both --nnodes=N and "
        "--rdzv-endpoint=HOST[:PORT], "
        "the same on each");
  }
  const auto nodes = parse_number<int>(flags.nnodes);
  if (!flags.nnodes.empty() && (!nodes || *nodes < 2)) {
    throw UsageError(concat("--nnodes='", flags.nnodes, "': give the number of machines, from 2"));
  }
}

}  // namespace

DoctorFlags parse_doctor_flags(const std::vector<std::string>& arguments) {
  const SplitArguments split = split_arguments(arguments, known_flags());
  DoctorFlags flags;
  for (const std::string& flag : split.flags) {
    const auto [name, value] = name_and_value(flag);
    take(flags, name, value);
  }
  if (!split.program.empty()) flags.program = split.program.front();
  check(flags);
  return flags;
}

const char* doctor_help() {
  return R"(Usage: lockstep doctor [flags] [program]

Checks what a job needs of this machine, or of several together, and says what to mend. Nothing is
changed and the program is not run.

This machine alone: names, interfaces, ports, clocks, /dev/shm, limits, processors, memory,
temporary files, versions, GPUs; of the program, that it can be executed and its libraries are there.
Several machines: all that on each; who reaches whom, both ways, at which address and how fast; names,
MTU, clocks, versions of lockstep and files of the program that differ.

Flags:
  --hosts=FILE|LIST          the machines, as for lockstep run --hosts; each is asked over ssh
  --ssh-command=COMMAND      what comes before a host's name
  --remote-lockstep=PATH     lockstep on the machines (default: where it is here)
or the same command on each machine:
  --nnodes=N                 how many they are
  --rdzv-endpoint=HOST[:PORT]  where they meet, an address of one of them
  --secret-file=FILE         as for lockstep run, or LOCKSTEP_JOB_SECRET
  --local-addr=HOST          address of this machine for the others
  --timeout=SECONDS          how long machines call each other (default 10); six times
                             as long they wait for one another
  --json                     all findings for programs
  -h, --help                 this text

Exit code: 0 when nothing failed, 1 otherwise, 2 for a wrong command line.

Examples:
  lockstep doctor
  lockstep doctor ./train
  lockstep doctor --hosts=a,b ./train
  lockstep doctor --nnodes=2 --rdzv-endpoint=10.0.0.1 --secret-file=job.secret    # on each
)";
}

}  // namespace lockstep::inline internal
