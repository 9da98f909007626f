#pragma once

#include <functional>
#include <optional>

#include <boost/asio/io_context.hpp>

#include "lockstep/base/internal/deadline.h"

namespace lockstep::inline internal {

/// Runs handlers in `io` until `done` returns true, `wake_fd` is readable (-1: none), or the
/// deadline expires.
void run_until(boost::asio::io_context& io, int wake_fd, const std::optional<Deadline>& deadline,
               const std::function<bool()>& done);

}  // namespace lockstep::inline internal
