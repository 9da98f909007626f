#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include <nlohmann/json.hpp>

#include "launcher/rendezvous/rendezvous_state.h"

namespace lockstep::inline internal {

inline constexpr int kMostInt = std::numeric_limits<int>::max();

/// What n bytes of JSON are read into takes at most kAnyJsonBytes + n * kJsonBytesAByte: a '[' in
/// another has the fewest for what it takes.
inline constexpr std::uint64_t kJsonBytesAByte = 128;
inline constexpr std::uint64_t kAnyJsonBytes = std::uint64_t{1} << 20;

/// Reads members of an object and notes whether all were what they had to be.
/// Lifetime: that of the object.
class Members {
 public:
  explicit Members(const nlohmann::json& object) : object_(object), good_(object.is_object()) {}

  bool good() const { return good_; }

  bool has(const char* name) const { return find(name) != nullptr; }
  std::uint64_t count(const char* name);
  int integer(const char* name, int least, int most);
  std::uint16_t port(const char* name);
  std::string text(const char* name);
  bool boolean(const char* name);
  /// An empty one where there is none.
  const nlohmann::json& object(const char* name);
  const nlohmann::json& list(const char* name);
  RendezvousNode node(const nlohmann::json& value);
  WorkerFault fault(const char* name);

 private:
  const nlohmann::json* find(const char* name) const;

  const nlohmann::json& object_;
  bool good_;
};

/// The beginning of a text that is too long.
std::string cut(const std::string& text);
nlohmann::json to_json(const RendezvousNode& node);
nlohmann::json to_json(const WorkerFault& fault);
/// What programs print need not be UTF-8: it is made so.
std::string text_of(const nlohmann::json& message);

}  // namespace lockstep::inline internal
