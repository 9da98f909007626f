#pragma once

#include <memory>
#include <optional>

#include <boost/asio/io_context.hpp>

#include "launcher/status/live_server.h"
#include "launcher/supervise/launcher.h"
#include "lockstep/os/files/temporary_directory.h"

namespace lockstep::inline internal {

/// Shows a job to its user's other programs on this machine: a socket in a temporary directory that
/// nobody else may enter; and, read-only, on a port where one is wished.
/// Threads: the agent's only one; requests are answered while the io_context runs.
class LiveView : public JobMonitor {
 public:
  /// `health`: a socket that listens, on which anybody who reaches it may read; need not be valid.
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
