#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "launcher/agents/control_server.h"
#include "launcher/job/launch_options.h"
#include "launcher/rendezvous/job_rendezvous.h"

namespace lockstep::inline internal {

/// The rendezvous as seen by the agent that serves it.
class ServedRendezvous : public JobRendezvous {
 public:
  /// `listening`: a socket that listens at the job's endpoint.
  ServedRendezvous(boost::asio::io_context& io, const LaunchOptions& options,
                   const RendezvousRules& rules, UniqueFd listening);

  std::string own_address() const override { return own_address_; }
  void report(const AgentReport& report) override;
  const AgentView& view() const override { return view_; }
  std::string missing() const override;
  void wait(int wake_fd, const std::optional<Deadline>& deadline) override;
  void finish(const Deadline& deadline) override;

 private:
  void look();

  boost::asio::io_context& io_;
  const RendezvousTimeouts timeouts_;
  RendezvousService service_;
  ControlServer server_;
  const std::string own_address_;
  AgentReport report_;
  AgentView view_;
};

}  // namespace lockstep::inline internal
