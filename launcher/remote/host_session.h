#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <poll.h>
#include <sys/types.h>

#include "launcher/logs/line_prefixer.h"
#include "launcher/remote/host_list.h"
#include "launcher/remote/hosted_request.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// How the command on a remote machine ended.
struct HostEnd {
  enum class Kind {
    kEnded,     ///< it ended, with `status`
    kNotBegun,  ///< the machine, or `lockstep` on it, could not be reached: `reason`
    kLost,      ///< the connection closed first: `reason`
    kStopped,   ///< this machine closed the connection
  };
  Kind kind = Kind::kStopped;
  int status = 0;
  std::string reason{};
  bool operator==(const HostEnd&) const = default;
};

/// Interprets ssh's exit code for a machine where the command did not start. `words`: ssh's last
/// output.
HostEnd why_not_begun(int ssh_status, const std::string& words, const std::string& lockstep);

/// Exit code of a job from the ends of its machines, in the order in which they came.
/// `stop_signal`: the signal that stops this machine.
int job_status(const std::vector<HostEnd>& ends, std::optional<int> stop_signal);

/// Prefixes an agent's own line with its machine. Leaves lines of workers unchanged.
std::string marked_line(const RemoteHost& host, const std::string& line);

/// How to connect to machines.
struct SshOptions {
  /// Words before the machine's name.
  std::vector<std::string> command{};
  /// Path of `lockstep` on the machines.
  std::string lockstep{};
};

/// Runs a command of `lockstep` on one remote machine, through ssh.
/// Threads: the main thread; ssh is killed if it ends.
/// Lifetime: the destructor kills ssh; the remote machine then ends the command.
class HostSession {
 public:
  /// Receives complete lines to show.
  using Sink = std::function<void(const std::string& lines)>;

  /// Errors: SystemError if ssh cannot be started.
  HostSession(RemoteHost host, const SshOptions& ssh, HostedRequest request, Sink out, Sink err);
  HostSession(const HostSession&) = delete;
  HostSession& operator=(const HostSession&) = delete;
  ~HostSession();

  const RemoteHost& host() const { return host_; }
  /// Whether the command has started.
  bool begun() const { return begun_; }
  /// How the command ended; empty until all its output has been shown.
  const std::optional<HostEnd>& end() const { return end_; }

  /// Sends a line. No effect before the command has started and after it has ended.
  void send(const std::string& line);
  /// Closes the connection; a command that has not ended counts as stopped.
  void give_up();

  /// Adds the descriptors to poll. `takes_out`, `takes_err`: whether more output may be shown.
  void await(std::vector<pollfd>& descriptors, bool takes_out, bool takes_err) const;
  /// When to call handle() at the latest.
  std::optional<Deadline> deadline() const { return drain_until_; }
  /// Reads and writes what is ready. `descriptors`: await()'s, from index `first` on.
  void handle(const std::vector<pollfd>& descriptors, std::size_t first);
  /// Number of descriptors that await() adds.
  static constexpr std::size_t kDescriptors = 4;

 private:
  void write();
  void read(UniqueFd& fd, LinePrefixer& lines, bool is_err);
  void show_errors(const std::string& lines);
  void take_error_line(const std::string& line);
  void note_end();
  void conclude();

  const RemoteHost host_;
  const HostedRequest request_;
  const std::string lockstep_;
  const Sink show_out_;
  const Sink show_err_;
  pid_t pid_ = 0;
  UniqueFd process_;
  UniqueFd in_;
  UniqueFd out_;
  UniqueFd err_;
  std::string outgoing_;
  LinePrefixer out_lines_{""};
  LinePrefixer err_lines_{""};
  /// Output of ssh and the remote shell before the command started.
  std::vector<std::string> first_words_;
  bool begun_ = false;
  bool given_up_ = false;
  std::optional<int> status_;
  std::optional<int> ssh_status_;
  /// After the command or ssh has ended: how long to read streams that other processes hold open.
  std::optional<Deadline> drain_until_;
  std::optional<HostEnd> end_;
};

}  // namespace lockstep::inline internal
