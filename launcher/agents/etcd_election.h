#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "launcher/agents/etcd_client.h"

namespace lockstep::inline internal {

/// Which agent of a job serves its rendezvous: the one whose record etcd holds, for as long as it
/// renews its lease. It keeps the job's state there for the one after it.
///
/// At most one agent can write the state: every write is conditional on the leader's key being the
/// very one that the writer made, and on the state being the one that it knows, so that its own
/// writes take effect in their order. An agent that could not renew its lease in time knows by
/// itself that it leads no more.
/// Source: etcd's documentation, "Lease" and "Transaction".
/// Threads: the agent's only one; everything happens while the io_context runs.
class EtcdElection {
 public:
  struct Settings {
    std::vector<HostAndPort> addresses;
    etcd::Keys keys;
    /// How long nobody leads at most after a leader was lost.
    std::chrono::seconds lease{5};
    /// How long the state of a job outlives its agents.
    std::chrono::seconds state_lease{60};
  };
  struct Handlers {
    /// What this agent is to be known by, should it win.
    std::function<std::string()> make_record;
    /// Another leads.
    std::function<void(const std::string& record)> on_leader;
    /// This one does. `state`: what was saved last.
    std::function<void(const std::optional<std::string>& state)> on_won;
    /// It does no more.
    std::function<void(const std::string& reason)> on_deposed;
  };

  EtcdElection(boost::asio::io_context& io, Settings settings, Handlers handlers);

  /// Looks who leads, again and again, and leads where nobody does. on_leader is called for each
  /// new one.
  void search();
  /// Ends the search: the leader is well.
  void rest() { is_searching_ = false; }

  bool leads() const { return !term_.empty(); }
  /// Of the leader: `on_saved` is called once `state` is in etcd, unless another is saved after it.
  void save(const std::string& state, std::function<void()> on_saved);
  /// Of the leader: lets others lead at once; with `job_ended`, nothing of the job stays in etcd.
  void resign(bool job_ended);
  /// Nothing is under way.
  bool is_idle() const { return pending_ == 0; }
  /// Why etcd did not answer last; empty: it did.
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
  std::string known_leader_;  ///< when its key was made
  std::string term_;          ///< when this agent's was; empty: it does not lead
  etcd::Leases leases_;
  std::string written_;  ///< when the state was that is known to be there
  std::optional<std::string> unsaved_;
  bool is_saving_ = false;
  std::function<void()> on_saved_;
  std::string trouble_;
};

}  // namespace lockstep::inline internal
