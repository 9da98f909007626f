#pragma once

#include <boost/asio/io_context.hpp>

#include "launcher/agents/contact.h"
#include "launcher/agents/control_client.h"
#include "launcher/job/launch_options.h"
#include "launcher/rendezvous/job_rendezvous.h"

namespace lockstep::inline internal {

/// The rendezvous as seen by an agent that connects to the one that serves it.
class JoinedRendezvous : public JobRendezvous {
 public:
  JoinedRendezvous(boost::asio::io_context& io, const LaunchOptions& options);

  bool is_reached() const override { return client_.told().has_value(); }
  std::string trouble() const override;
  std::string own_address() const override;
  void report(const AgentReport& report) override;
  const AgentView& view() const override { return view_; }
  std::string missing() const override;
  /// Errors: Error if the rendezvous refuses this agent, or was not reached before the timeout.
  void wait(int wake_fd, const std::optional<Deadline>& deadline) override;
  void finish(const Deadline& deadline) override;

 private:
  void look();
  std::string where() const;

  boost::asio::io_context& io_;
  const RendezvousOptions options_;
  ControlClient client_;
  Contact contact_;
  AgentView view_;
};

}  // namespace lockstep::inline internal
