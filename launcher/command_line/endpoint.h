#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::inline internal {

/// A host and, if given, a port.
struct Endpoint {
  std::string host{};
  std::optional<std::uint16_t> port{};
};

/// Parses a flag's value "HOST", "HOST:PORT" or "[IPV6]:PORT"; an IPv6 address without a port needs
/// no brackets.
/// Errors: UsageError that names --rdzv-endpoint.
Endpoint parse_endpoint(const std::string& text);

/// Parses a port, 0 to 65535.
/// Errors: UsageError that names the flag.
std::uint16_t parse_port(const char* flag, const std::string& text);

}  // namespace lockstep::inline internal
