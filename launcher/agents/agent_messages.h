#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/rendezvous/job_rendezvous.h"
#include "launcher/rendezvous/rendezvous_state.h"

namespace lockstep::inline internal {

/// What an agent sends: its report, and the report's number, which the answer repeats.
struct AgentMessage {
  std::uint64_t number = 0;
  AgentReport report{};
  bool operator==(const AgentMessage&) const = default;
};

/// What it is told, in answer or when something has changed.
struct ServiceMessage {
  std::uint64_t number = 0;
  AgentView view{};
  /// Whom the job waits for.
  std::string missing{};
  /// Why it may not take part; the connection ends then.
  std::string refusal{};
  bool operator==(const ServiceMessage&) const = default;
};

/// No message is longer; so the values of one take at most 3 MiB (json_members.h).
inline constexpr std::size_t kLongestAgentMessageBytes = 16 * 1024;

/// As JSON (RFC 8259): numbers and texts in a fixed schema, nothing that could be executed. Texts
/// that are too long are cut.
std::string encode(const AgentMessage& message);
std::string encode(const ServiceMessage& message);

/// Nothing for anything else than a message of the schema, whatever it is.
std::optional<AgentMessage> decode_agent_message(std::string_view text);
std::optional<ServiceMessage> decode_service_message(std::string_view text);

/// The state of a rendezvous for the agent that leads it next, as JSON of a fixed schema.
std::string encode(const RendezvousState& state);
/// Nothing for anything else than a text of the schema.
std::optional<RendezvousState> decode_state(std::string_view text);

}  // namespace lockstep::inline internal
