#include "launcher/agents/etcd_election.h"

#include <list>
#include <map>
#include <memory>

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "launcher/agents/event_loop.h"

namespace lockstep {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;
using nlohmann::json;
using tcp = asio::ip::tcp;

constexpr std::chrono::seconds kElectionLimit{30};

/// What etcd is to an election, with requests that are held up on their way to it, or whose answers
/// are lost.
class FakeEtcd {
 public:
  enum class Way { kStraight, kHeldUp, kAnswerIsLost, kLost };
  struct Entry {
    std::string value;  // in base64, as it came
    int created = 0;
    int written = 0;
  };

  explicit FakeEtcd(asio::io_context& io)
      : acceptor_(io, {asio::ip::make_address("127.0.0.1"), 0}) {
    accept();
  }

  HostAndPort address() const {
    return {.host = "127.0.0.1", .port = acceptor_.local_endpoint().port()};
  }

  /// Which way the next requests at this path go, whose bodies hold `part`.
  std::function<Way(const std::string& path, const std::string& body)> way =
      [](const std::string&, const std::string&) { return Way::kStraight; };

  std::size_t held_up() const { return held_up_.size(); }
  void release() {
    for (const auto& [path, body] : std::exchange(held_up_, {})) answer(path, body);
  }
  const std::map<std::string, Entry>& entries() const { return entries_; }

 private:
  struct Connection {
    explicit Connection(tcp::socket socket) : stream(std::move(socket)) {}
    beast::tcp_stream stream;
    beast::flat_buffer buffer;
    http::request<http::string_body> request;
    http::response<http::string_body> response;
  };

  void accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (error) return;
      serve(std::make_shared<Connection>(std::move(socket)));
      accept();
    });
  }

  void serve(const std::shared_ptr<Connection>& connection) {
    http::async_read(connection->stream, connection->buffer, connection->request,
                     [this, connection](error_code error, std::size_t) {
                       if (!error) take(connection);
                     });
  }

  void take(const std::shared_ptr<Connection>& connection) {
    const std::string path(connection->request.target());
    const std::string& body = connection->request.body();
    const Way taken = way(path, body);
    if (taken != Way::kStraight) silent_.push_back(connection);
    if (taken == Way::kHeldUp) held_up_.emplace_back(path, body);
    if (taken == Way::kHeldUp || taken == Way::kLost) return;
    connection->response.body() = answer(path, body).dump();
    if (taken == Way::kAnswerIsLost) return;
    connection->response.prepare_payload();
    http::async_write(connection->stream, connection->response,
                      [connection](error_code, std::size_t) {});
  }

  json answer(const std::string& path, const std::string& body) {
    const json request = json::parse(body);
    if (path == "/v3/lease/grant") return {{"ID", std::to_string(++leases_)}, {"TTL", "5"}};
    if (path == "/v3/lease/keepalive") return {{"result", {{"ID", request["ID"]}, {"TTL", "5"}}}};
    if (path == "/v3/lease/revoke") return json::object();
    bool succeeded = true;
    for (const json& wish : request.value("compare", json::array())) {
      const auto found = entries_.find(wish["key"]);
      const Entry entry = found == entries_.end() ? Entry{} : found->second;
      const bool of_creation = wish["target"] == "CREATE";
      const std::string wanted = wish[of_creation ? "create_revision" : "mod_revision"];
      succeeded =
          succeeded && wanted == std::to_string(of_creation ? entry.created : entry.written);
    }
    json responses = json::array();
    bool is_new = false;
    for (const json& part : request.value(succeeded ? "success" : "failure", json::array())) {
      if (part.contains("request_put")) {
        const json& put = part["request_put"];
        if (!std::exchange(is_new, true)) ++revision_;
        Entry& entry = entries_[put["key"]];
        if (entry.created == 0) entry.created = revision_;
        entry.written = revision_;
        entry.value = put["value"];
        responses.push_back({{"response_put", json::object()}});
        continue;
      }
      json values = json::array();
      if (const auto found = entries_.find(part["request_range"]["key"]); found != entries_.end()) {
        values.push_back({{"value", found->second.value},
                          {"create_revision", std::to_string(found->second.created)},
                          {"mod_revision", std::to_string(found->second.written)}});
      }
      responses.push_back({{"response_range", {{"kvs", values}}}});
    }
    return {{"header", {{"revision", std::to_string(revision_)}}},
            {"succeeded", succeeded},
            {"responses", responses}};
  }

  tcp::acceptor acceptor_;
  std::list<std::pair<std::string, std::string>> held_up_;
  std::list<std::shared_ptr<Connection>> silent_;
  std::map<std::string, Entry> entries_;
  int revision_ = 1;
  int leases_ = 0;
};

struct EtcdElectionTest : testing::Test {
  asio::io_context io{1};
  FakeEtcd etcd{io};
  int won = 0;
  std::vector<std::string> reasons;

  EtcdElection election(std::chrono::seconds lease = std::chrono::seconds(60)) {
    return {
        io,
        {.addresses = {etcd.address()}, .keys = etcd::keys_of("/lockstep", "job"), .lease = lease},
        {.make_record = [] { return "record"; },
         .on_leader = [](const std::string&) {},
         .on_won = [this](const std::optional<std::string>&) { ++won; },
         .on_deposed = [this](const std::string& reason) { reasons.push_back(reason); }}};
  }

  bool eventually(const std::function<bool()>& done) {
    run_until(io, -1, Deadline::after(kElectionLimit), done);
    return done();
  }

  std::string state() const {
    const auto found = etcd.entries().find("L2xvY2tzdGVwL2pvYi9zdGF0ZQ==");
    return found == etcd.entries().end() ? "" : found->second.value;
  }
};

bool writes_state(const std::string& path, const std::string& body) {
  return path == "/v3/kv/txn" && body.find(R"("target":"MOD")") != std::string::npos;
}

constexpr const char* kOne = "b25l";  // in base64
constexpr const char* kTwo = "dHdv";

TEST_F(EtcdElectionTest, AWriteThatIsHeldUpDoesNotUndoALaterOne) {
  EtcdElection agent = election();
  agent.search();
  ASSERT_TRUE(eventually([&] { return won == 1; }));
  etcd.way = [](const std::string& path, const std::string& body) {
    return path == "/v3/kv/txn" && body.find(kOne) != std::string::npos ? FakeEtcd::Way::kHeldUp
                                                                        : FakeEtcd::Way::kStraight;
  };
  agent.save("one", [] {});
  ASSERT_TRUE(eventually([&] { return etcd.held_up() == 1; }));
  bool is_saved = false;
  agent.save("two", [&] { is_saved = true; });
  ASSERT_TRUE(eventually([&] { return is_saved; }));
  EXPECT_EQ(state(), kTwo);
  etcd.release();
  EXPECT_EQ(state(), kTwo);
  EXPECT_TRUE(agent.leads());
}

TEST_F(EtcdElectionTest, AWriteWhoseAnswerIsLostIsFollowedByTheNext) {
  EtcdElection agent = election();
  agent.search();
  ASSERT_TRUE(eventually([&] { return won == 1; }));
  etcd.way = [](const std::string& path, const std::string& body) {
    return writes_state(path, body) && body.find(kOne) != std::string::npos
               ? FakeEtcd::Way::kAnswerIsLost
               : FakeEtcd::Way::kStraight;
  };
  agent.save("one", [] {});
  ASSERT_TRUE(eventually([&] { return state() == kOne; }));
  bool is_saved = false;
  agent.save("two", [&] { is_saved = true; });
  ASSERT_TRUE(eventually([&] { return is_saved; }));
  EXPECT_EQ(state(), kTwo);
  EXPECT_TRUE(agent.leads());
  EXPECT_TRUE(reasons.empty());
}

TEST_F(EtcdElectionTest, TheLeaseCountsFromItsGrant) {
  constexpr std::chrono::seconds kLease{1};
  int campaigns = 0;
  etcd.way = [&](const std::string& path, const std::string& body) {
    if (path != "/v3/kv/txn" || body.find("request_put") == std::string::npos) {
      return FakeEtcd::Way::kStraight;
    }
    // The first that would lead is heard when its lease has ended.
    if (++campaigns > 1) return FakeEtcd::Way::kLost;
    run_until(io, -1, Deadline::after(kLease), [] { return false; });
    return FakeEtcd::Way::kStraight;
  };
  EtcdElection agent = election(kLease);
  agent.search();
  ASSERT_TRUE(eventually([&] { return campaigns == 1; }));
  ASSERT_TRUE(eventually([&] { return etcd.entries().size() == 1 && agent.is_idle(); }));
  EXPECT_EQ(won, 0);
  EXPECT_FALSE(agent.leads());
}

}  // namespace
}  // namespace lockstep
