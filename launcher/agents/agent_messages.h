#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/rendezvous/job_rendezvous.h"
#include "launcher/rendezvous/rendezvous_state.h"

namespace lockstep::inline internal {

/// Message of an agent to the rendezvous: its report, and the report's number, which the answer
/// repeats.
struct AgentMessage {
  std::uint64_t number = 0;
  AgentReport report{};
  bool operator==(const AgentMessage&) const = default;
};

/// Message of the rendezvous to an agent: an answer to a report, or a change.
struct ServiceMessage {
  std::uint64_t number = 0;
  AgentView view{};
  /// Which machines the job waits for.
  std::string missing{};
  /// Why the agent may not take part; the connection closes then.
  std::string refusal{};
  bool operator==(const ServiceMessage&) const = default;
};

/// Longest message in bytes; so the values of one take at most 3 MiB (json_members.h).
inline constexpr std::size_t kLongestAgentMessageBytes = 16 * 1024;

/// Encodes a message as JSON (RFC 8259) of a fixed schema: numbers and texts. Long texts are
/// truncated.
std::string encode(const AgentMessage& message);
std::string encode(const ServiceMessage& message);

/// Decodes a message; nothing for any text that does not match the schema.
std::optional<AgentMessage> decode_agent_message(std::string_view text);
std::optional<ServiceMessage> decode_service_message(std::string_view text);

/// Encodes the state of a rendezvous for the next leader, as JSON of a fixed schema.
std::string encode(const RendezvousState& state);
/// Decodes a state; nothing for any text that does not match the schema.
std::optional<RendezvousState> decode_state(std::string_view text);

}  // namespace lockstep::inline internal
