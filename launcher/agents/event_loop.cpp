#include "launcher/agents/event_loop.h"

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

namespace lockstep::inline internal {

namespace asio = boost::asio;
using boost::system::error_code;

void run_until(asio::io_context& io, int wake_fd, const std::optional<Deadline>& deadline,
               const std::function<bool()>& done) {
  bool is_awake = false;
  int handlers = 0;
  const auto wake = [&](error_code error) {
    --handlers;
    if (error != asio::error::operation_aborted) is_awake = true;
  };
  asio::posix::stream_descriptor descriptor(io);
  if (wake_fd >= 0) {
    descriptor.assign(wake_fd);
    ++handlers;
    descriptor.async_wait(asio::posix::stream_descriptor::wait_read, wake);
  }
  asio::steady_timer timer(io);
  if (deadline) {
    timer.expires_at(deadline->instant());
    ++handlers;
    timer.async_wait(wake);
  }
  io.restart();
  while (!is_awake && !done() && io.run_one() > 0) {
  }
  // The descriptor is the caller's, and the handlers refer to this call.
  timer.cancel();
  if (wake_fd >= 0) descriptor.release();
  io.restart();
  while (handlers > 0 && io.run_one() > 0) {
  }
}

}  // namespace lockstep::inline internal
