#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::inline internal {

struct Endpoint {
  std::string host{};
  std::optional<std::uint16_t> port{};
};

/// Of a flag's value "HOST", "HOST:PORT" or "[IPV6]:PORT"; an address of version 6 may stand
/// without brackets where it has no port. Errors: UsageError that names --rdzv-endpoint.
Endpoint parse_endpoint(const std::string& text);

/// Errors: UsageError that names the flag.
std::uint16_t parse_port(const char* flag, const std::string& text);

}  // namespace lockstep::inline internal
