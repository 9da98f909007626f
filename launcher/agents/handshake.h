#pragma once

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <string>

/// The fields by which agents make sure of each other when one connects to another: the upgrade of
/// HTTP (RFC 6455) that begins each connection carries them.
namespace lockstep::handshake {

inline constexpr const char* kTarget = "/agent";
inline constexpr const char* kJob = "Lockstep-Job";
inline constexpr const char* kNonce = "Lockstep-Nonce";
inline constexpr const char* kProof = "Lockstep-Proof";
/// In a refusal: why.
inline constexpr const char* kRefusal = "Lockstep-Refusal";

/// What begins the answer to whoever is none of the agents and asks who meets there.
inline constexpr const char* kAgentsOf = "agents of job '";

/// Printable, and of one line, as a field must be.
inline std::string one_line(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, '?');
  return text;
}

/// A job's id, whatever it is made of.
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
