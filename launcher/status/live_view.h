#pragma once

#include <memory>
#include <optional>

#include <boost/asio/io_context.hpp>

#include "launcher/status/live_server.h"
#include "launcher/supervise/launcher.h"
#include "lockstep/os/files/temporary_directory.h"

namespace lockstep::inline internal {

/// Serves a job's status and control to its user's other programs on this machine, on a socket in a
/// temporary directory that only the user can enter; and the status, read-only, on a port if one is
/// given.
/// Threads: the agent's only thread; requests are answered while the io_context runs.
class LiveView : public JobMonitor {
 public:
  /// `health`: a listening socket on which any client may read the status; may be invalid.
  LiveView(boost::asio::io_context& io, UniqueFd health)
      : io_(io), health_listening_(std::move(health)) {}

  void open(LiveJob& job) noexcept override;
  void close() noexcept override;

 private:
  void open_health(const LiveJob& job);
  void open_control(LiveJob& job);

  boost::asio::io_context& io_;
  UniqueFd health_listening_;
  bool was_opened_ = false;
  std::optional<TemporaryDirectory> directory_;
  std::unique_ptr<LiveServer> control_;
  std::unique_ptr<LiveServer> health_;
};

}  // namespace lockstep::inline internal
