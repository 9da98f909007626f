#pragma once

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <string>

/// Header fields by which agents authenticate each other, in the HTTP upgrade (RFC 6455) that
/// begins each connection.
namespace lockstep::handshake {

inline constexpr const char* kTarget = "/agent";
inline constexpr const char* kJob = "Lockstep-Job";
inline constexpr const char* kNonce = "Lockstep-Nonce";
inline constexpr const char* kProof = "Lockstep-Proof";
/// In a refusal: the reason.
inline constexpr const char* kRefusal = "Lockstep-Refusal";

/// Start of the answer to a client that is no agent and asks which job this is.
inline constexpr const char* kAgentsOf = "agents of job '";

/// Replaces control and non-ASCII characters, as a header field requires.
inline std::string one_line(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, '?');
  return text;
}

/// A job's id, percent-encoded for a header field.
inline std::string job_name(const std::string& id) {
  std::string name;
  for (const unsigned char c : id) {
    char escaped[4];
    std::snprintf(escaped, sizeof(escaped), "%%%02x", static_cast<unsigned>(c));
    name += std::isalnum(c) != 0 ? std::string(1, static_cast<char>(c)) : escaped;
  }
  return name;
}

}  // namespace lockstep::handshake
