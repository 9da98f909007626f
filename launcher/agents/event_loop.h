#pragma once

#include <functional>
#include <optional>

#include <boost/asio/io_context.hpp>

#include "lockstep/base/internal/deadline.h"

namespace lockstep::inline internal {

/// Runs what waits in `io` until `done` says so, `wake_fd` is readable (-1: none), or the deadline.
void run_until(boost::asio::io_context& io, int wake_fd, const std::optional<Deadline>& deadline,
               const std::function<bool()>& done);

}  // namespace lockstep::inline internal
