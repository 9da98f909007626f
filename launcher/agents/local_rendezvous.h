#pragma once

#include <boost/asio/io_context.hpp>

#include "launcher/rendezvous/rendezvous_service.h"

namespace lockstep::inline internal {

/// The rendezvous of a job on one machine, without a network.
class LocalRendezvous : public JobRendezvous {
 public:
  /// Handlers in `io` run while it waits.
  LocalRendezvous(boost::asio::io_context& io, const RendezvousRules& rules, std::string address)
      : io_(io), service_(rules, timeouts()), address_(std::move(address)) {}

  std::string own_address() const override { return address_; }
  void report(const AgentReport& report) override;
  const AgentView& view() const override { return view_; }
  std::string missing() const override { return ""; }
  void wait(int wake_fd, const std::optional<Deadline>& deadline) override;
  void finish(const Deadline&) override {}

 private:
  static RendezvousTimeouts timeouts();

  boost::asio::io_context& io_;
  RendezvousService service_;
  std::string address_;
  AgentView view_{};
};

}  // namespace lockstep::inline internal
