#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include "launcher/agents/accept_loop.h"
#include "launcher/agents/agent_messages.h"
#include "launcher/agents/job_secret.h"
#include "launcher/rendezvous/rendezvous_service.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Serves a job's rendezvous to the agents of other machines. Resources of clients without the
/// job's secret are bounded: their connections are limited in number and time, and the oldest is
/// dropped first. The same holds for a client whose handshake has the secret, possibly replayed,
/// until its first message decrypts.
/// Threads: the agent's only thread; handlers run while the io_context runs.
/// Lifetime: may be destroyed while the io_context runs.
class ControlServer {
 public:
  struct Settings {
    std::string job;
    std::string secret;
    std::chrono::milliseconds handshake_timeout{5'000};
    std::size_t most_strangers = 64;
    std::size_t most_agents = 4'096;
    /// Asked before each message to an agent; if false, messages wait for send_views().
    std::function<bool()> may_tell = [] { return true; };
  };
  /// `listening`: a listening socket.
  ControlServer(boost::asio::io_context& io, RendezvousService& service, Settings settings,
                UniqueFd listening);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  /// Sends each agent its changed view. Call it after each change of the service that this server
  /// did not make, and when may_tell becomes true.
  void send_views();
  /// Number of connected agents.
  std::size_t agent_count() const { return agents_.size(); }
  /// Accepts no more connections.
  void stop_listening() { accept_loop_.stop(); }

 private:
  struct PendingClient;
  struct Agent;

  std::string who_meets() const;
  void take(boost::asio::ip::tcp::socket socket);
  void greet(const std::shared_ptr<PendingClient>& stranger);
  void judge(const std::shared_ptr<PendingClient>& stranger);
  void admit(const std::shared_ptr<PendingClient>& stranger, const Nonce& client,
             const Nonce& server);
  void answer(const std::shared_ptr<PendingClient>& stranger, unsigned status,
              const std::string& text);
  void forget(const std::shared_ptr<PendingClient>& stranger);
  void await_first_report(const std::shared_ptr<Agent>& agent);
  void take_report(Agent& agent, const std::string& text);
  void take_in(Agent& agent, const std::string& id);
  void refuse(Agent& agent, const std::string& reason);
  void drop(Agent& agent);
  void tell(Agent& agent);
  void note_refusal(const std::string& peer, const std::string& reason);

  boost::asio::io_context& io_;
  RendezvousService& service_;
  const Settings settings_;
  const JobSecret secret_;
  AcceptLoop<boost::asio::ip::tcp> accept_loop_;
  std::list<std::shared_ptr<PendingClient>> strangers_;  // without a handshake; the oldest first
  std::list<std::shared_ptr<Agent>> newcomers_;          // have yet to report; the oldest first
  std::map<const Agent*, std::shared_ptr<Agent>> agents_;
  RendezvousVersion told_{};
  bool owes_answers_ = false;
  std::uint64_t refusals_ = 0;
  /// Handlers that run after the destructor find it expired.
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace lockstep::inline internal
