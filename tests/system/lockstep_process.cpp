#include "tests/system/lockstep_process.h"

#include <csignal>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/os/process/child_process.h"

namespace lockstep {
namespace {

UniqueFd create(const std::filesystem::path& file) {
  return UniqueFd(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
}

}  // namespace

bool eventually(const std::function<bool()>& condition) {
  const Deadline deadline = Deadline::after(kTestPatience);
  while (!condition()) {
    if (deadline.passed()) return false;
    ::poll(nullptr, 0, 2);  // The condition is looked at again, soon.
  }
  return true;
}

std::string read_text(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

bool process_exists(pid_t pid) {
  const std::string status = read_text(concat("/proc/", pid, "/stat"));
  const auto name_end = status.rfind(") ");
  return name_end != std::string::npos && status[name_end + 2] != 'Z';
}

LockstepProcess::LockstepProcess(const std::vector<std::string>& arguments,
                                 const std::vector<std::string>& variables)
    : directory_(std::filesystem::temp_directory_path(), "lockstep_test_") {
  const UniqueFd out = create(directory_.path() / "out");
  const UniqueFd err = create(directory_.path() / "err");
  SpawnOptions options{.path = LOCKSTEP_BINARY, .arguments = {"lockstep"}};
  options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
  options.environment = variables;
  options.environment.emplace_back("PATH=/usr/local/bin:/usr/bin:/bin");
  options.stdout_fd = out.get();
  options.stderr_fd = err.get();
  pid_ = spawn_process(options);
}

LockstepProcess::~LockstepProcess() {
  if (!running_) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void LockstepProcess::signal(int signal) const {
  ::kill(pid_, signal);
}

LockstepProcess::Result LockstepProcess::wait() {
  int status = 0;
  Result result;
  if (eventually([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; })) {
    running_ = false;
    result.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  result.out = out();
  result.err = err();
  return result;
}

LockstepProcess::Result run_lockstep(const std::vector<std::string>& arguments,
                                     const std::vector<std::string>& variables) {
  return LockstepProcess(arguments, variables).wait();
}

std::vector<std::string> run_script(std::vector<std::string> flags, const std::string& script,
                                    const std::vector<std::string>& arguments) {
  flags.insert(flags.begin(), "run");
  for (const char* part : {"sh", "-c"}) flags.emplace_back(part);
  flags.push_back(script);
  flags.emplace_back("sh");
  flags.insert(flags.end(), arguments.begin(), arguments.end());
  return flags;
}

std::vector<ReportedFailure> failures_in(const std::string& err) {
  static const std::regex kFailure(
      "lockstep: (job failed: )?rank (\\d+) \\((?:local rank (\\d+), )?pid (\\d+)\\) "
      "((?:failed|killed|exited).*?)(?:; restart (\\d+) of \\d+)?");
  std::vector<ReportedFailure> failures;
  std::istringstream lines(err);
  for (std::string line; std::getline(lines, line);) {
    std::smatch parts;
    if (!std::regex_match(line, parts, kFailure)) continue;
    failures.push_back({.rank = std::stoi(parts[2]),
                        .local_rank = std::stoi(parts[parts[3].matched ? 3 : 2]),
                        .pid = std::stoi(parts[4]),
                        .is_first = parts[1].matched,
                        .how = parts[5],
                        .restart = parts[6].matched ? std::stoi(parts[6]) : 0});
  }
  return failures;
}

}  // namespace lockstep
