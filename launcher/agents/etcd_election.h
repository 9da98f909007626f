#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "launcher/agents/etcd_client.h"

namespace lockstep::inline internal {

/// Elects the agent of a job that serves its rendezvous: the one whose record is in etcd, while it
/// renews its lease. The leader keeps the job's state in etcd for its successor.
///
/// At most one agent can write the state. Every write is conditional on the leader's key being the
/// one that the writer created, and on the state being the version that it knows, so its own writes
/// take effect in order. An agent that did not renew its lease in time knows without etcd that it
/// no longer leads.
///
/// Algorithm: leases and transactions, as in etcd's documentation ("Lease", "Transaction").
/// Threads: the agent's only thread; handlers run while the io_context runs.
class EtcdElection {
 public:
  struct Settings {
    std::vector<HostAndPort> addresses;
    etcd::Keys keys;
    /// Longest time without a leader after a leader was lost.
    std::chrono::seconds lease{5};
    /// How long etcd keeps the state of a job after its agents are gone.
    std::chrono::seconds state_lease{60};
  };
  struct Handlers {
    /// Record of this agent in etcd, if it wins.
    std::function<std::string()> make_record;
    /// Another agent leads.
    std::function<void(const std::string& record)> on_leader;
    /// This agent leads. `state`: the one saved last.
    std::function<void(const std::optional<std::string>& state)> on_won;
    /// This agent no longer leads.
    std::function<void(const std::string& reason)> on_deposed;
  };

  EtcdElection(boost::asio::io_context& io, Settings settings, Handlers handlers);

  /// Polls for the leader and campaigns if there is none. Calls on_leader for each new leader.
  void search();
  /// Ends the search: the leader is reachable.
  void rest() { is_searching_ = false; }

  /// Whether this agent leads.
  bool leads() const { return !term_.empty(); }
  /// Leader: writes `state`; calls `on_saved` once it is in etcd, unless a later state replaces it
  /// first.
  void save(const std::string& state, std::function<void()> on_saved);
  /// Leader: gives up its lease, so another can lead at once; with `job_ended` removes the job's
  /// state from etcd too.
  void resign(bool job_ended);
  /// Whether no request is pending.
  bool is_idle() const { return pending_ == 0; }
  /// Why etcd did not answer the last request; empty: it did.
  const std::string& trouble() const { return trouble_; }

 private:
  using Clock = std::chrono::steady_clock;
  using OnText = std::function<void(const std::string& text)>;

  void ask(const etcd::Request& request, const OnText& on_text,
           const std::function<void()>& on_trouble);
  void look();
  void look_later();
  void stand();
  void run_with(const etcd::Leases& leases, Clock::time_point granted);
  void take(const etcd::Campaign& campaign);
  void win(const etcd::Campaign& campaign, const etcd::Leases& leases, Clock::time_point granted);
  void renew();
  void renew_after(Clock::time_point begin);
  void depose(const std::string& reason);
  void save_next();
  void save_again_later();
  void note_saved(const std::string& state, const std::optional<etcd::Saved>& saved);
  void forget_term();

  const Settings settings_;
  const Handlers handlers_;
  EtcdClient client_;
  boost::asio::steady_timer look_again_;
  boost::asio::steady_timer renew_again_;
  boost::asio::steady_timer save_again_;
  boost::asio::steady_timer lease_ends_;
  bool is_searching_ = false;
  bool is_looking_ = false;
  int pending_ = 0;
  std::string known_leader_;  ///< revision at which its key was created
  std::string term_;          ///< the same of this agent's key; empty: it does not lead
  etcd::Leases leases_;
  std::string written_;  ///< revision of the last known state
  std::optional<std::string> unsaved_;
  bool is_saving_ = false;
  std::function<void()> on_saved_;
  std::string trouble_;
};

}  // namespace lockstep::inline internal
