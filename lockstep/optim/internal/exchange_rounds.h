#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::inline internal {

/// Start of one rank's bytes in a round.
struct MessagePart {
  std::size_t message = 0;  ///< Index of the rank's message.
  std::int64_t offset = 0;
  bool operator==(const MessagePart&) const = default;
};

/// The same number of bytes from every rank: an all-gather; or, if `parts` has one entry, from one
/// rank: a broadcast.
struct ExchangeRound {
  std::int64_t bytes = 0;
  std::vector<MessagePart> parts = {};  ///< By rank, or of `source` alone.
  int source = 0;
  bool operator==(const ExchangeRound&) const = default;
};

/// Plans how messages of these sizes reach all ranks: all-gathers while every rank has bytes left,
/// so that none waits while others send; then broadcasts of the rest. Every byte is sent once; at
/// most as many rounds as messages and ranks together. At least two ranks.
std::vector<ExchangeRound> plan_exchange_rounds(
    const std::vector<std::vector<std::int64_t>>& message_bytes);

}  // namespace lockstep::inline internal
