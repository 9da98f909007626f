#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include "launcher/agents/agent_messages.h"
#include "launcher/agents/job_secret.h"

namespace lockstep::inline internal {

class SealedConnection;

/// An agent's connection to where its job's rendezvous is served: made again whenever it breaks.
/// Threads: the agent's only one; everything happens while the io_context runs. It may go while
/// that runs on.
class ControlClient {
 public:
  struct Settings {
    std::string job;
    std::string secret;
    std::string host;
    std::uint16_t port = 0;
    /// A report is sent again so often, to say that this agent is there. A connection on which
    /// nothing has come in answer for as long is made anew.
    std::chrono::milliseconds keep_alive_interval{5'000};
    std::chrono::milliseconds connect_timeout{5'000};
    /// A few round trips across the world: an answer may take so long however short the interval.
    std::chrono::milliseconds shortest_timeout{1'000};
  };
  using Clock = std::chrono::steady_clock;

  ControlClient(boost::asio::io_context& io, Settings settings);
  ~ControlClient();
  ControlClient(const ControlClient&) = delete;
  ControlClient& operator=(const ControlClient&) = delete;

  /// Looks the host up again before the next connection. That may take long where names are served
  /// by a machine that does not answer: to be asked for while no workers run.
  void look_host_up() { addresses_.clear(); }

  void report(const AgentReport& report);
  /// What was told last; nothing before that.
  const std::optional<ServiceMessage>& told() const { return told_; }
  /// Everything that was reported is known.
  bool is_heard() const { return told_ && told_->number >= number_; }
  std::optional<Clock::time_point> last_contact() const { return last_contact_; }
  /// Why there is no connection now; empty where there is one.
  const std::string& trouble() const { return trouble_; }
  /// No process listens there any more, as the machine says that it ran on.
  bool is_gone() const { return is_gone_; }
  /// Why this agent may not take part. For good.
  const std::string& refusal() const { return refusal_; }
  /// The address of this machine on the connection made last; empty before that.
  const std::string& own_address() const { return own_address_; }

 private:
  struct Attempt;

  void connect();
  void shake_hands(const std::shared_ptr<Attempt>& attempt);
  void judge(const std::shared_ptr<Attempt>& attempt, boost::system::error_code error);
  void fail(const std::shared_ptr<Attempt>& attempt, const std::string& reason);
  void take(const std::string& text);
  void try_later(const std::string& reason);
  void send();
  void send_again_later();
  std::chrono::milliseconds answer_timeout() const;

  boost::asio::io_context& io_;
  const Settings settings_;
  const JobSecret secret_;
  boost::asio::steady_timer retry_;
  boost::asio::steady_timer keep_alive_;
  std::vector<boost::asio::ip::tcp::endpoint> addresses_;
  std::shared_ptr<Attempt> attempt_;
  std::shared_ptr<SealedConnection> connection_;
  AgentReport report_;
  std::uint64_t number_ = 0;
  std::optional<ServiceMessage> told_;
  std::optional<Clock::time_point> last_contact_;
  /// When the first report was sent after which nothing has come.
  std::optional<Clock::time_point> unanswered_since_;
  std::string trouble_ = "not connected yet";
  bool is_gone_ = false;
  std::string refusal_;
  std::string own_address_;
  /// Handlers that come too late find it gone.
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace lockstep::inline internal
