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

/// How what was asked of a machine came to its end.
struct HostEnd {
  enum class Kind {
    kEnded,     ///< it has ended there, with a status
    kNotBegun,  ///< the machine, or `lockstep` on it, could not be reached: `reason`
    kLost,      ///< the connection ended first: `reason`
    kStopped,   ///< it was given up from here
  };
  Kind kind = Kind::kStopped;
  int status = 0;
  std::string reason{};
  bool operator==(const HostEnd&) const = default;
};

/// What ssh's end means for a machine where nothing had begun. `words`: the last that was said.
HostEnd why_not_begun(int ssh_status, const std::string& words, const std::string& lockstep);

/// The exit code of a job from the ends of its machines, in the order in which they came.
/// `stop_signal`: the signal that stops this machine.
int job_status(const std::vector<HostEnd>& ends, std::optional<int> stop_signal);

/// As a line of an agent's own comes through: marked with its machine. Those of workers are left as
/// they are.
std::string marked_line(const RemoteHost& host, const std::string& line);

/// How machines are reached.
struct SshOptions {
  /// What comes before the machine's name.
  std::vector<std::string> command{};
  /// Path of `lockstep` on the machines.
  std::string lockstep{};
};

/// What `lockstep` is asked to do on one other machine, and the ssh that leads there.
/// Threads: the main thread, with whose end ssh ends.
/// Lifetime: the destructor kills ssh, upon which the other side ends what it does.
class HostSession {
 public:
  /// Whole lines, to be shown.
  using Sink = std::function<void(const std::string& lines)>;

  /// Errors: SystemError when ssh cannot be started.
  HostSession(RemoteHost host, const SshOptions& ssh, HostedRequest request, Sink out, Sink err);
  HostSession(const HostSession&) = delete;
  HostSession& operator=(const HostSession&) = delete;
  ~HostSession();

  const RemoteHost& host() const { return host_; }
  bool begun() const { return begun_; }
  /// Nothing until all that came from there has been shown.
  const std::optional<HostEnd>& end() const { return end_; }

  /// Does nothing where nothing has begun, or all has ended.
  void send(const std::string& line);
  /// Ends the connection; what has not ended by itself counts as stopped.
  void give_up();

  /// What to wait for; `takes_out`, `takes_err`: whether more may be shown.
  void await(std::vector<pollfd>& descriptors, bool takes_out, bool takes_err) const;
  /// When to call handle() at the latest.
  std::optional<Deadline> deadline() const { return drain_until_; }
  /// Takes what has come. `descriptors`: those that await() added, from `first` on.
  void handle(const std::vector<pollfd>& descriptors, std::size_t first);
  /// How many await() adds.
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
  /// What was said before it began there: by ssh, or the shell there.
  std::vector<std::string> first_words_;
  bool begun_ = false;
  bool given_up_ = false;
  std::optional<int> status_;
  std::optional<int> ssh_status_;
  /// What others hold open is not waited for longer, once the command or ssh has ended.
  std::optional<Deadline> drain_until_;
  std::optional<HostEnd> end_;
};

}  // namespace lockstep::inline internal
