#pragma once

#include <functional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "lockstep/os/files/temporary_directory.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep {

/// What a test waits for at most. Far more than anything here takes, less than the test's timeout.
inline constexpr std::chrono::milliseconds kTestPatience{40'000};

/// True once the condition holds; false if it does not within kTestPatience.
bool eventually(const std::function<bool()>& condition);

/// The whole text of a file; empty when there is none.
std::string read_text(const std::filesystem::path& file);

/// A process that has ended and was not waited for counts as gone.
bool process_exists(pid_t pid);

/// The binary `lockstep`, run as users run it, with its output in files.
class LockstepProcess {
 public:
  struct Result {
    /// As a shell says it.
    int status = -1;
    std::string out{};
    std::string err{};
  };

  /// `variables` (NAME=value) are added to a small environment with PATH.
  explicit LockstepProcess(const std::vector<std::string>& arguments,
                           const std::vector<std::string>& variables = {});
  LockstepProcess(const LockstepProcess&) = delete;
  LockstepProcess& operator=(const LockstepProcess&) = delete;
  ~LockstepProcess();

  pid_t pid() const { return pid_; }
  void signal(int signal) const;
  std::string out() const { return read_text(directory_.path() / "out"); }
  std::string err() const { return read_text(directory_.path() / "err"); }

  /// Waits for the end. The status is -1 when it has not come within kTestPatience.
  Result wait();

 private:
  TemporaryDirectory directory_;
  pid_t pid_ = 0;
  bool running_ = true;
};

/// Runs `lockstep <arguments>` to its end.
LockstepProcess::Result run_lockstep(const std::vector<std::string>& arguments,
                                     const std::vector<std::string>& variables = {});

/// The arguments of `lockstep run <flags> sh -c <script> sh <arguments>`.
std::vector<std::string> run_script(std::vector<std::string> flags, const std::string& script,
                                    const std::vector<std::string>& arguments = {});

/// What a launcher reports of a worker that failed.
struct ReportedFailure {
  int rank = 0;
  int local_rank = 0;
  pid_t pid = 0;
  bool is_first = false;  ///< the one that ends the job
  std::string how{};      ///< "exit code 5: ValueError: bad"
  int restart = 0;        ///< the number of the restart that follows; 0: none
};

/// The failures that a launcher reported on stderr, in the order of its lines.
std::vector<ReportedFailure> failures_in(const std::string& err);

}  // namespace lockstep
