#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "launcher/agents/etcd_messages.h"
#include "launcher/job/launch_options.h"

namespace lockstep::inline internal {

/// Sends requests to etcd, to any of its addresses that answers.
/// Threads: the agent's only thread; handlers run while the io_context runs.
/// Lifetime: no handler is called after the destructor.
class EtcdClient {
 public:
  /// `text`: the answer. Empty if none arrived; `trouble` says why.
  struct Answer {
    std::optional<std::string> text{};
    std::string trouble{};
  };
  using Handler = std::function<void(const Answer&)>;

  EtcdClient(boost::asio::io_context& io, std::vector<HostAndPort> addresses);
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  /// Sends a request; calls `handler` within a few seconds. After a failure the next request goes
  /// to the next address.
  void ask(const etcd::Request& request, Handler handler);

 private:
  struct Call;

  void exchange(const std::shared_ptr<Call>& call);
  void end(const std::shared_ptr<Call>& call, const Answer& answer);

  boost::asio::io_context& io_;
  const std::vector<HostAndPort> addresses_;
  std::size_t turn_ = 0;
  std::vector<std::vector<boost::asio::ip::tcp::endpoint>> resolved_;
  std::list<std::shared_ptr<Call>> calls_;
};

}  // namespace lockstep::inline internal
