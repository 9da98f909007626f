#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "launcher/status/live_server.h"

namespace lockstep::inline internal {

/// The answer to a request, or why there is none.
struct LiveReply {
  bool is_there = false;
  LiveAnswer answer{};
  /// No process listens: the launcher has ended.
  bool is_gone = false;
  std::string trouble{};
};

/// Sends a request to all sockets at the same time. Returns when all have answered or `patience`
/// expires.
std::vector<LiveReply> ask_all(const std::vector<std::filesystem::path>& sockets,
                               const LiveRequest& request, std::chrono::milliseconds patience);

/// Sends a request to one socket.
LiveReply ask(const std::filesystem::path& socket, const LiveRequest& request,
              std::chrono::milliseconds patience);

}  // namespace lockstep::inline internal
