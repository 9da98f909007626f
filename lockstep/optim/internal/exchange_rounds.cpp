#include "lockstep/optim/internal/exchange_rounds.h"

#include <algorithm>
#include <limits>

namespace lockstep::inline internal {

std::vector<ExchangeRound> plan_exchange_rounds(
    const std::vector<std::vector<std::int64_t>>& message_bytes) {
  const std::size_t ranks = message_bytes.size();
  std::vector<MessagePart> next(ranks);
  const auto is_done = [&](std::size_t rank) {
    return next[rank].message == message_bytes[rank].size();
  };
  const auto left = [&](std::size_t rank) {
    return message_bytes[rank][next[rank].message] - next[rank].offset;
  };
  const auto advance = [&](std::size_t rank, std::int64_t bytes) {
    next[rank].offset += bytes;
    if (left(rank) == 0) next[rank] = {.message = next[rank].message + 1};
  };

  std::vector<ExchangeRound> rounds;
  for (;;) {
    std::int64_t bytes = std::numeric_limits<std::int64_t>::max();
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      bytes = is_done(rank) ? 0 : std::min(bytes, left(rank));
      if (bytes == 0) break;
    }
    if (bytes == 0) break;
    rounds.push_back({.bytes = bytes, .parts = next});
    for (std::size_t rank = 0; rank < ranks; ++rank) advance(rank, bytes);
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    while (!is_done(rank)) {
      rounds.push_back(
          {.bytes = left(rank), .parts = {next[rank]}, .source = static_cast<int>(rank)});
      advance(rank, left(rank));
    }
  }
  return rounds;
}

}  // namespace lockstep::inline internal
