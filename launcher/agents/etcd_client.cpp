#include "launcher/agents/etcd_client.h"

#include <algorithm>

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>

#include "launcher/agents/http_message.h"
#include "launcher/agents/sealed_connection.h"
#include "lockstep/base/internal/concat.h"

namespace lockstep::inline internal {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;
using tcp = asio::ip::tcp;

struct EtcdClient::Call {
  Call(asio::io_context& io, Handler on_answer) : stream(io), handler(std::move(on_answer)) {
    constexpr std::uint64_t kLongestAnswerBytes = 8 << 20;
    parser.body_limit(kLongestAnswerBytes);
  }

  beast::tcp_stream stream;
  std::string where;
  std::string request;
  http::response_parser<http::string_body> parser;
  beast::flat_buffer received;
  Handler handler;
};

EtcdClient::EtcdClient(asio::io_context& io, std::vector<HostAndPort> addresses)
    : io_(io), addresses_(std::move(addresses)), resolved_(addresses_.size()) {}

EtcdClient::~EtcdClient() {
  for (const auto& call : calls_) {
    call->handler = nullptr;
    call->stream.close();
  }
}

void EtcdClient::ask(const etcd::Request& request, Handler handler) {
  constexpr std::chrono::seconds kPatience{2};
  const HostAndPort& address = addresses_[turn_];
  const auto call = std::make_shared<Call>(io_, std::move(handler));
  calls_.push_back(call);
  call->where = concat("etcd at ", address.host, " port ", address.port);
  call->request = http_request(
      "POST", request.path,
      {{"Host", concat(address.host, ":", address.port)}, {"Content-Type", "application/json"}},
      request.body);
  call->stream.expires_after(kPatience);
  auto& endpoints = resolved_[turn_];
  if (endpoints.empty()) {
    error_code error;
    for (const auto& entry :
         tcp::resolver(io_).resolve(address.host, std::to_string(address.port), error)) {
      endpoints.push_back(entry.endpoint());
    }
    if (error) {
      const Answer answer{.trouble = concat(call->where, ": ", error.message())};
      return asio::post(io_, [this, call, answer] {
        if (call->handler) end(call, answer);
      });
    }
  }
  call->stream.async_connect(endpoints, [this, call](error_code error, const tcp::endpoint&) {
    if (!call->handler) return;
    if (error) return end(call, {.trouble = concat(call->where, ": ", error.message())});
    keep_from_workers(call->stream.socket());
    exchange(call);
  });
}

void EtcdClient::exchange(const std::shared_ptr<Call>& call) {
  const auto read = [this, call](error_code error, std::size_t) {
    if (!call->handler) return;
    if (error) return end(call, {.trouble = concat(call->where, ": ", error.message())});
    const std::string& body = call->parser.get().body();
    const std::string refusal = etcd::refusal_in(body);
    if (!refusal.empty()) return end(call, {.trouble = concat(call->where, ": ", refusal)});
    end(call, {.text = body});
  };
  const auto written = [call, read](error_code error, std::size_t) {
    if (error) return read(error, 0);
    http::async_read(call->stream, call->received, call->parser, read);
  };
  asio::async_write(call->stream, asio::buffer(call->request), written);
}

void EtcdClient::end(const std::shared_ptr<Call>& call, const Answer& answer) {
  const Handler handler = std::move(call->handler);
  call->handler = nullptr;
  call->stream.close();
  calls_.remove(call);
  if (!answer.text) turn_ = (turn_ + 1) % addresses_.size();
  handler(answer);
}

}  // namespace lockstep::inline internal
