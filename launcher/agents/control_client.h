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

/// An agent's connection to the agent that serves its job's rendezvous; reconnects when it breaks.
/// Threads: the agent's only thread; handlers run while the io_context runs.
/// Lifetime: may be destroyed while the io_context runs.
class ControlClient {
 public:
  struct Settings {
    std::string job;
    std::string secret;
    std::string host;
    std::uint16_t port = 0;
    /// Interval between reports, which show that this agent is alive. If no answer arrives within
    /// this time, the connection is replaced.
    std::chrono::milliseconds keep_alive_interval{5'000};
    std::chrono::milliseconds connect_timeout{5'000};
    /// Lower bound of that timeout for short intervals: a few round trips across the world.
    std::chrono::milliseconds shortest_timeout{1'000};
  };
  using Clock = std::chrono::steady_clock;

  ControlClient(boost::asio::io_context& io, Settings settings);
  ~ControlClient();
  ControlClient(const ControlClient&) = delete;
  ControlClient& operator=(const ControlClient&) = delete;

  /// Resolves the host's name again before the next connection. It may block for long if the name
  /// server does not answer: call it only while no workers run.
  void look_host_up() { addresses_.clear(); }

  /// Sends a report, now or after the next connection.
  void report(const AgentReport& report);
  /// The last message received; empty before the first.
  const std::optional<ServiceMessage>& told() const { return told_; }
  /// Whether the rendezvous has answered the last report.
  bool is_acknowledged() const { return told_ && told_->number >= number_; }
  /// When the last message was received.
  std::optional<Clock::time_point> last_contact() const { return last_contact_; }
  /// Why there is no connection now; empty: there is one.
  const std::string& trouble() const { return trouble_; }
  /// Whether the machine refused the last connection: it runs, but no process listens there.
  bool is_gone() const { return is_gone_; }
  /// Why this agent may not take part, permanently; empty: it may.
  const std::string& refusal() const { return refusal_; }
  /// This machine's address on the last connection; empty before the first.
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
  /// When the first unanswered report was sent.
  std::optional<Clock::time_point> unanswered_since_;
  std::string trouble_ = "not connected yet";
  bool is_gone_ = false;
  std::string refusal_;
  std::string own_address_;
  /// Handlers that run after the destructor find it expired.
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace lockstep::inline internal
