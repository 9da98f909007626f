#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "launcher/status/live_server.h"

namespace lockstep::inline internal {

/// The answer to one of several requests, or why there is none.
struct LiveReply {
  bool is_there = false;
  LiveAnswer answer{};
  /// Nobody listens: the launcher has ended.
  bool is_gone = false;
  std::string trouble{};
};

/// Sends a request to each of the sockets, to all at the same time. Returns when all have answered,
/// or when the patience is over.
std::vector<LiveReply> ask_all(const std::vector<std::filesystem::path>& sockets,
                               const LiveRequest& request, std::chrono::milliseconds patience);

/// The same of one.
LiveReply ask(const std::filesystem::path& socket, const LiveRequest& request,
              std::chrono::milliseconds patience);

}  // namespace lockstep::inline internal
