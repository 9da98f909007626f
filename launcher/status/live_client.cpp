#include "launcher/status/live_client.h"

#include <cerrno>
#include <memory>

#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>

#include "launcher/agents/http_message.h"
#include "lockstep/base/error.h"
#include "lockstep/os/socket/unix_socket.h"

namespace lockstep::inline internal {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

// More than thousands of workers fill.
constexpr std::uint64_t kLongestAnswerBytes = 16 << 20;

class Question {
 public:
  Question(asio::io_context& io, const std::filesystem::path& path, const LiveRequest& request,
           LiveReply& reply)
      : socket_(io), reply_(reply) {
    request_ = http_request(request.method, request.target, {{"Host", "localhost"}}, request.body);
    parser_.body_limit(kLongestAnswerBytes);
    try {
      UniqueFd fd = connect_to_path(path);
      socket_.assign(asio::local::stream_protocol(), fd.get());
      static_cast<void>(fd.release());
    } catch (const SystemError& error) {
      const int number = error.errno_value();
      reply.is_gone = number == ECONNREFUSED || number == ENOENT;
      reply.trouble = number == EAGAIN ? "does not answer" : error.what();
      return;
    }
    reply.trouble = "does not answer";
    asio::async_write(socket_, asio::buffer(request_), [this](error_code error, std::size_t) {
      if (error) return fail(error);
      http::async_read(socket_, received_, parser_, [this](error_code failed, std::size_t) {
        if (failed) return fail(failed);
        const auto& response = parser_.get();
        reply_ = {.is_there = true,
                  .answer = {.status = response.result_int(),
                             .content_type = std::string(response[http::field::content_type]),
                             .body = response.body()}};
      });
    });
  }

 private:
  void fail(error_code error) {
    // It ended before it answered.
    reply_.is_gone = error == http::error::end_of_stream || error == asio::error::broken_pipe ||
                     error == asio::error::connection_reset;
    reply_.trouble = error.message();
  }

  asio::local::stream_protocol::socket socket_;
  LiveReply& reply_;
  std::string request_;
  beast::flat_buffer received_;
  http::response_parser<http::string_body> parser_;
};

}  // namespace

std::vector<LiveReply> ask_all(const std::vector<std::filesystem::path>& sockets,
                               const LiveRequest& request, std::chrono::milliseconds patience) {
  std::vector<LiveReply> replies(sockets.size());
  asio::io_context io{1};
  std::vector<std::unique_ptr<Question>> questions;
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    questions.push_back(std::make_unique<Question>(io, sockets[i], request, replies[i]));
  }
  io.run_for(patience);
  return replies;
}

LiveReply ask(const std::filesystem::path& socket, const LiveRequest& request,
              std::chrono::milliseconds patience) {
  return ask_all({socket}, request, patience).front();
}

}  // namespace lockstep::inline internal
