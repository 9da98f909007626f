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

/// The rendezvous of a job whose agents elect the one that serves it, by way of etcd: where that
/// one is lost, another goes on from the state that etcd holds. No agent is told of a change before
/// etcd holds it.
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
  /// Errors: Error when the rendezvous refuses this agent, or has not been reached for too long.
  void wait(int wake_fd, const std::optional<Deadline>& deadline) override;
  void finish(const Deadline& deadline) override;

 private:
  using Instant = Contact::Instant;

  /// What an agent has that serves.
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
  /// The id of the agent that `client_` speaks to.
  std::string leader_id_;
  std::unique_ptr<Served> served_;
  EtcdElection election_;
  Contact contact_;
  AgentReport report_;
  AgentView view_;
};

}  // namespace lockstep::inline internal
