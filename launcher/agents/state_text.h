#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/rendezvous/rendezvous_state.h"

namespace lockstep::inline internal {

/// The state of a rendezvous for whoever keeps it next, as JSON of a fixed schema.
std::string encode(const RendezvousState& state);
/// Nothing for anything else than a text of the schema.
std::optional<RendezvousState> decode_state(std::string_view text);

}  // namespace lockstep::inline internal
