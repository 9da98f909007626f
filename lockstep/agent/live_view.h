#pragma once

#include <memory>
#include <optional>

#include <boost/asio/io_context.hpp>

#include "lockstep/agent/live_server.h"
#include "lockstep/launch/live_job.h"
#include "lockstep/os/temporary_directory.h"

namespace lockstep {

/// Shows a job to its user's other programs on this machine: a socket in a temporary directory that
/// nobody else may enter.
/// Threads: the agent's only one; requests are answered while the io_context runs.
class LiveView : public JobMonitor {
 public:
  explicit LiveView(boost::asio::io_context& io) : io_(io) {}

  void open(LiveJob& job) noexcept override;
  void close() noexcept override;

 private:
  void open_control(LiveJob& job);

  boost::asio::io_context& io_;
  bool was_opened_ = false;
  std::optional<TemporaryDirectory> directory_;
  std::unique_ptr<LiveServer> control_;
};

}  // namespace lockstep
