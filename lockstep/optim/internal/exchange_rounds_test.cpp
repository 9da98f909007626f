#include "lockstep/optim/internal/exchange_rounds.h"

#include <random>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Rounds = std::vector<ExchangeRound>;

TEST(ExchangeRounds, NothingToExchange) {
  EXPECT_EQ(plan_exchange_rounds({{}, {}}), Rounds{});
}

TEST(ExchangeRounds, EqualSharesTakeOneRound) {
  EXPECT_EQ(plan_exchange_rounds({{8}, {8}, {8}}),
            (Rounds{{.bytes = 8, .parts = {{0, 0}, {0, 0}, {0, 0}}}}));
}

TEST(ExchangeRounds, RoundsEndWhereAMessageDoesAndTheRestIsBroadcast) {
  EXPECT_EQ(plan_exchange_rounds({{5, 3}, {7, 4}}),
            (Rounds{{.bytes = 5, .parts = {{0, 0}, {0, 0}}},
                    {.bytes = 2, .parts = {{1, 0}, {0, 5}}},
                    {.bytes = 1, .parts = {{1, 2}, {1, 0}}},
                    {.bytes = 3, .parts = {{1, 1}}, .source = 1}}));
}

TEST(ExchangeRounds, WithARankThatHasNothingAllAreBroadcasts) {
  EXPECT_EQ(plan_exchange_rounds({{5, 3}, {}, {2}}),
            (Rounds{{.bytes = 5, .parts = {{0, 0}}, .source = 0},
                    {.bytes = 3, .parts = {{1, 0}}, .source = 0},
                    {.bytes = 2, .parts = {{0, 0}}, .source = 2}}));
}

TEST(ExchangeRounds, EveryByteTravelsOnceInOrder) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<std::vector<std::int64_t>> messages(2 + random() % 4);
    std::size_t count = messages.size();
    for (auto& own : messages) {
      own.resize(random() % 6);
      for (std::int64_t& bytes : own) bytes = 1 + static_cast<std::int64_t>(random() % 9);
      count += own.size();
    }
    const Rounds rounds = plan_exchange_rounds(messages);
    EXPECT_LE(rounds.size(), count);
    std::vector<MessagePart> next(messages.size());
    for (const ExchangeRound& round : rounds) {
      ASSERT_GT(round.bytes, 0);
      ASSERT_TRUE(round.parts.size() == 1 || round.parts.size() == messages.size());
      for (std::size_t i = 0; i < round.parts.size(); ++i) {
        const std::size_t rank =
            round.parts.size() == 1 ? static_cast<std::size_t>(round.source) : i;
        ASSERT_EQ(round.parts[i], next[rank]);
        next[rank].offset += round.bytes;
        ASSERT_LE(next[rank].offset, messages[rank][next[rank].message]);
        if (next[rank].offset == messages[rank][next[rank].message]) {
          next[rank] = {.message = next[rank].message + 1};
        }
      }
    }
    for (std::size_t rank = 0; rank < messages.size(); ++rank) {
      EXPECT_EQ(next[rank].message, messages[rank].size());
    }
  }
}

}  // namespace
}  // namespace lockstep
