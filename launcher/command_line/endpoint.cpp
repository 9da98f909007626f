#include "launcher/command_line/endpoint.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"

namespace lockstep::inline internal {

std::uint16_t parse_port(const char* flag, const std::string& text) {
  const auto port = parse_number<int>(text);
  if (!port || *port < 0 || *port > 65535) {
    throw UsageError(concat(flag, ": '", text, "' is no port; give a number up to 65535"));
  }
  return static_cast<std::uint16_t>(*port);
}

Endpoint parse_endpoint(const std::string& text) {
  constexpr const char* kFlag = "--rdzv-endpoint";
  std::string host = text;
  std::string rest;
  if (text.starts_with("[")) {
    const auto end = text.find(']');
    if (end == std::string::npos)
      throw UsageError(concat(kFlag, "='", text, "': give [IPV6]:PORT, with the ]"));
    host = text.substr(1, end - 1);
    rest = text.substr(end + 1);
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    host = text.substr(0, text.find(':'));
    rest = text.substr(text.find(':'));
  }
  if (host.empty() || (!rest.empty() && rest[0] != ':')) {
    throw UsageError(concat(kFlag, "='", text, "': give HOST, HOST:PORT or [IPV6]:PORT"));
  }
  if (rest.empty()) return {host, std::nullopt};
  return {host, parse_port(kFlag, rest.substr(1))};
}

}  // namespace lockstep::inline internal
