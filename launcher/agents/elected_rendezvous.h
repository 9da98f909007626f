#pragma once

#include <memory>

#include <boost/asio/io_context.hpp>

#include "launcher/agents/contact.h"
#include "launcher/agents/control_client.h"
#include "launcher/agents/control_server.h"
#include "launcher/agents/etcd_election.h"
#include "launcher/job/launch_options.h"
#include "launcher/rendezvous/job_rendezvous.h"

namespace lockstep::inline internal {

/// The rendezvous of a job whose agents elect, through etcd, the one that serves it. If that agent
/// is lost, another continues from the state in etcd. No agent receives a change before etcd has
/// it.
class ElectedRendezvous : public JobRendezvous {
 public:
  /// Errors: those of bind_tcp_for_peers() at this machine's address.
  ElectedRendezvous(boost::asio::io_context& io, const LaunchOptions& options,
                    const RendezvousRules& rules);

  bool is_reached() const override { return leads() || (client_ && client_->told()); }
  std::string trouble() const override;
  std::string own_address() const override { return own_address_; }
  void report(const AgentReport& report) override;
  const AgentView& view() const override { return view_; }
  std::string missing() const override;
  /// Errors: Error if the rendezvous refuses this agent, or was not reached before the timeout.
  void wait(int wake_fd, const std::optional<Deadline>& deadline) override;
  void finish(const Deadline& deadline) override;

 private:
  using Instant = Contact::Instant;

  /// State of the agent that serves.
  struct Served {
    RendezvousService service;
    std::unique_ptr<ControlServer> server{};
    RendezvousVersion saved{};
    RendezvousVersion being_saved{};
  };

  bool leads() const { return served_ != nullptr; }
  bool is_connected() const;
  std::string make_record();
  void follow(const std::string& record);
  void lead(const std::optional<std::string>& saved);
  void step_down(const std::string& reason);
  std::optional<RendezvousState> state_in(const std::string& saved) const;
  bool may_tell();
  void save();
  void serve();
  void look();
  std::string where() const;
  std::string why_not_reached() const;

  boost::asio::io_context& io_;
  const LaunchOptions& options_;
  const RendezvousRules rules_;
  const JobSecret secret_;
  const std::string own_address_;
  UniqueFd listening_;
  std::unique_ptr<ControlClient> client_;
  /// Id of the agent to which `client_` connects.
  std::string leader_id_;
  std::unique_ptr<Served> served_;
  EtcdElection election_;
  Contact contact_;
  AgentReport report_;
  AgentView view_;
};

}  // namespace lockstep::inline internal
