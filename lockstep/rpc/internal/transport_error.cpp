#include "lockstep/rpc/internal/transport_error.h"

#include <string_view>

#include "lockstep/base/internal/parse_number.h"

namespace lockstep::rpc::inline internal {
namespace {

constexpr const char* kReported = "[reported by a worker] ";
constexpr const char* kLost = "[lost worker ";

}  // namespace

bool is_connection_error(const std::string& message) {
  const bool has_ended = message.find("originated at tensorpipe") != std::string::npos ||
                         message.find(kConnectionEnded) != std::string::npos;
  return has_ended && message.find(kReported) == std::string::npos;
}

bool is_timeout(const std::string& message) {
  return message.find(kTimeoutMark) != std::string::npos;
}

std::string lost_worker_text(int rank) {
  return kLost + std::to_string(rank) + "]";
}

std::optional<int> lost_worker_in(const std::string& message) {
  const auto at = message.find(kLost);
  if (at == std::string::npos) return std::nullopt;
  const auto first = at + std::char_traits<char>::length(kLost);
  return parse_number<int>(message.substr(first, message.find(']', first) - first));
}

std::string reported_text(const std::string& message) {
  return kReported + message;
}

std::string without_mark(const std::string& message) {
  return message.starts_with(kReported) ? message.substr(std::string_view(kReported).size())
                                        : message;
}

}  // namespace lockstep::rpc::inline internal
