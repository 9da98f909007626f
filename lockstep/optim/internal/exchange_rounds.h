#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::inline internal {

/// Where a round's bytes of one rank begin.
struct MessagePart {
  std::size_t message = 0;  ///< Of this rank's.
  std::int64_t offset = 0;
  bool operator==(const MessagePart&) const = default;
};

/// The same number of bytes from every rank: an all-gather. Or, where `parts` has one entry only,
/// from one rank: a broadcast.
struct ExchangeRound {
  std::int64_t bytes = 0;
  std::vector<MessagePart> parts = {};  ///< By rank, or of `source` alone.
  int source = 0;
  bool operator==(const ExchangeRound&) const = default;
};

/// How every rank's messages, of these sizes, reach all: as long as all ranks have something left,
/// all at a time, so that none waits while others send; then what is left of each. Every byte
/// travels once; there are no more rounds than messages and ranks together. At least two ranks.
std::vector<ExchangeRound> plan_exchange_rounds(
    const std::vector<std::vector<std::int64_t>>& message_bytes);

}  // namespace lockstep::inline internal
