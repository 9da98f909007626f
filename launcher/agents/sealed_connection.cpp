#include "launcher/agents/sealed_connection.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/buffers_to_string.hpp>
#include <fcntl.h>

#include "launcher/agents/agent_messages.h"

namespace lockstep::inline internal {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace websocket = beast::websocket;
using boost::system::error_code;

void limit(WebSocket& socket) {
  // Whether an agent is alive is told by its reports, not by the transport.
  socket.set_option(websocket::stream_base::timeout{websocket::stream_base::none(),
                                                    websocket::stream_base::none(), false});
  socket.read_message_max(kLongestAgentMessageBytes);
  socket.binary(true);
}

void keep_from_workers(asio::ip::tcp::socket& socket) {
  ::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
  error_code ignored;
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
}

void SealedConnection::start(Handlers handlers) {
  handlers_ = std::move(handlers);
  read_next();
}

void SealedConnection::read_next() {
  socket_.async_read(received_, [self = shared_from_this()](error_code error, std::size_t) {
    if (self->is_closed_) return;
    if (error) return self->fail(error.message());
    const auto text = self->incoming_.open(beast::buffers_to_string(self->received_.data()));
    self->received_.consume(self->received_.size());
    if (!text) return self->fail("a message that does not open: changed, repeated or forged");
    self->handlers_.on_message(*text);
    if (!self->is_closed_) self->read_next();
  });
}

void SealedConnection::send(std::string text) {
  if (is_closed_) return;
  waiting_ = std::move(text);
  if (!is_writing_) write_next();
}

void SealedConnection::write_next() {
  leaving_ = outgoing_.seal(*waiting_);
  waiting_.reset();
  is_writing_ = true;
  socket_.async_write(asio::buffer(leaving_),
                      [self = shared_from_this()](error_code error, std::size_t) {
                        self->is_writing_ = false;
                        if (self->is_closed_) return;
                        if (error) return self->fail(error.message());
                        if (self->waiting_) return self->write_next();
                        if (self->closes_when_sent_) self->end_sending();
                      });
}

void SealedConnection::fail(const std::string& reason) {
  close();
  handlers_.on_closed(reason);
}

void SealedConnection::close() {
  if (is_closed_) return;
  is_closed_ = true;
  beast::get_lowest_layer(socket_).close();
}

void SealedConnection::close_when_sent() {
  closes_when_sent_ = true;
  if (!is_writing_) end_sending();
}

// The other side reads what was sent, and then closes.
void SealedConnection::end_sending() {
  error_code ignored;
  beast::get_lowest_layer(socket_).socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
}

}  // namespace lockstep::inline internal
