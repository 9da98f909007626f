// The binary `lockstep`. It does not load LibTorch, so that it starts in milliseconds.
#include <array>
#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "lockstep/base/concat.h"
#include "lockstep/base/error.h"
#include "lockstep/base/failpoint.h"
#include "lockstep/base/nearest_name.h"
#include "lockstep/cli/command.h"
#include "lockstep/cli/finish_output.h"
#include "lockstep/remote/attend.h"

namespace lockstep {
namespace {

constexpr std::array kCommands = {
    Command{"run", "start a program on several processes", run_command},
    Command{"ps", "show the jobs that run on this machine", ps_command},
    Command{"logs", "print or follow what the workers of a job write", logs_command},
    Command{"scale", "change the number of workers of a job that runs", scale_command},
    Command{"stop", "end a job that runs", stop_command},
    Command{"new", "write a project that builds and trains at once", new_command},
    Command{"test", "check that two ranks can train together on this machine", test_command},
    Command{"doctor", "check this machine, or several, and say what to mend", doctor_command},
    Command{"bench", "time the backends, or the launcher, on this machine", bench_command},
    Command{"data", "check that a training run had each sample once", data_command},
    Command{"report", "make a page of a training: curves, ranks, runs, machine", report_command},
    Command{"snapshot", "look at, verify, export and delete what trainings save", snapshot_command},
    Command{"trace", "make one timeline of the traces of all ranks", trace_command},
    Command{"estimate", "say what a model will need in memory and traffic", estimate_command},
    Command{"env", "show what a bug report needs, and the variables that Lockstep reads", env_command},
};

std::string help_text() {
  std::string text =
      "Lockstep: distributed training for C++ programs on LibTorch\n\n"
      "Usage: lockstep <command> [flags]\n\nCommands:\n";
  for (const Command& command : kCommands) {
    text += concat("  ", command.name, std::string(10 - std::string_view(command.name).size(), ' '),
                   command.summary, "\n");
  }
  text +=
      "\nFlags:\n"
      "  -h, --help    show this text; lockstep <command> --help explains one command\n"
      "  --version     show the version\n\n"
      "Examples:\n"
      "  lockstep run --standalone --nproc-per-node=2 ./train\n"
      "  lockstep run --help\n";
  return text;
}

int dispatch(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    throw UsageError("no command given; lockstep --help lists them, lockstep run starts a job");
  }
  const std::string& name = arguments.front();
  if (name == "help" && arguments.size() > 1) return dispatch({arguments[1], "--help"});
  if (name == "--help" || name == "-h" || name == "help") {
    std::fputs(help_text().c_str(), stdout);
    return 0;
  }
  if (name == "--version") {
    std::puts("lockstep " LOCKSTEP_VERSION);
    return 0;
  }
  // What --hosts starts on other machines; not for people.
  if (name == "attend") return attend();
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    if (name == command.name) return command.run({arguments.begin() + 1, arguments.end()});
    names.emplace_back(command.name);
  }
  if (name.starts_with("-")) {
    throw UsageError(concat("unknown flag ", name,
                            " before the command; flags of a command follow ", "it: lockstep run ",
                            name));
  }
  const std::string suggestion = did_you_mean(name, names);
  throw UsageError(concat("unknown command '", name, "'",
                          suggestion.empty() ? "; lockstep --help lists them" : suggestion));
}

// A shell's >&- closes a standard stream. What is opened next would get its number, and what is
// written to the stream would go there: a socket of the launcher, or a worker's log.
void open_closed_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    // The lowest free number is given out first: `fd` itself.
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) < 0) {
      throw SystemError(concat("open /dev/null for the closed stream ", fd), errno);
    }
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  try {
    lockstep::open_closed_streams();
    lockstep::read_failpoints();
    const int status = lockstep::dispatch({argv + 1, argv + argc});
    lockstep::finish_output();
    return status;
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "lockstep: %s\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lockstep: %s\n", error.what());
    return lockstep::kExitFailure;
  }
}
