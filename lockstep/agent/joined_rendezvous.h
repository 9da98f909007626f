#pragma once

#include <boost/asio/io_context.hpp>

#include "lockstep/agent/control_client.h"
#include "lockstep/launch/job_rendezvous.h"
#include "lockstep/launch/launch_options.h"

namespace lockstep {

/// The rendezvous as an agent takes part that another one serves.
///
/// An agent that has had no contact for the limit of the keep-alive stops its workers, since the
/// others hold it for lost; after as long again the job is over for it.
class JoinedRendezvous : public JobRendezvous {
 public:
  explicit JoinedRendezvous(const LaunchOptions& options);

  bool is_reached() const override { return client_.told().has_value(); }
  std::string own_address() const override;
  void report(const AgentReport& report) override;
  const AgentView& view() const override { return view_; }
  std::string missing() const override;
  /// Errors: Error when the rendezvous refuses this agent, or has not been reached for too long.
  void wait(int wake_fd, const std::optional<Deadline>& deadline) override;
  void finish(const Deadline& deadline) override;

 private:
  using Instant = Deadline::Clock::time_point;

  void look();
  bool is_cut_off(Instant now) const;
  Instant patience_ends() const;
  std::string where() const;

  boost::asio::io_context io_{1};
  const RendezvousOptions options_;
  ControlClient client_;
  const Instant started_;
  AgentView view_;
};

}  // namespace lockstep
