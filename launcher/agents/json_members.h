#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include <nlohmann/json.hpp>

#include "launcher/rendezvous/rendezvous_state.h"

namespace lockstep::inline internal {

inline constexpr int kMostInt = std::numeric_limits<int>::max();

/// Memory bound: n bytes of JSON parse into at most kAnyJsonBytes + n * kJsonBytesAByte bytes.
/// Nested '[' is the worst case.
inline constexpr std::uint64_t kJsonBytesAByte = 128;
inline constexpr std::uint64_t kAnyJsonBytes = std::uint64_t{1} << 20;

/// Reads members of a JSON object and records whether all had the expected type and range.
/// Lifetime: refers to the object.
class Members {
 public:
  explicit Members(const nlohmann::json& object) : object_(object), good_(object.is_object()) {}

  /// Whether all members so far were valid.
  bool good() const { return good_; }

  bool has(const char* name) const { return find(name) != nullptr; }
  std::uint64_t count(const char* name);
  int integer(const char* name, int least, int most);
  std::uint16_t port(const char* name);
  std::string text(const char* name);
  bool boolean(const char* name);
  /// Returns an empty object if the member is missing.
  const nlohmann::json& object(const char* name);
  const nlohmann::json& list(const char* name);
  RendezvousNode node(const nlohmann::json& value);
  WorkerFault fault(const char* name);

 private:
  const nlohmann::json* find(const char* name) const;

  const nlohmann::json& object_;
  bool good_;
};

/// Truncates a text that is too long.
std::string cut(const std::string& text);
nlohmann::json to_json(const RendezvousNode& node);
nlohmann::json to_json(const WorkerFault& fault);
/// Dumps JSON; bytes that are not UTF-8, which programs may print, are replaced.
std::string text_of(const nlohmann::json& message);

}  // namespace lockstep::inline internal
