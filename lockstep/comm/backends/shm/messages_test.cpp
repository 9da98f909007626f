#include "lockstep/comm/backends/shm/messages.h"

#include <latch>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/backends/shm/engine_testing.h"

namespace lockstep::shm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing_engine::error_in;
using testing_engine::on_ranks;
using testing_engine::soon;

std::vector<std::byte> text_of(std::uint64_t tag, std::uint64_t bytes) {
  std::vector<std::byte> text(bytes);
  for (std::uint64_t i = 0; i < bytes; ++i) text[i] = std::byte((i * 7 + tag) % 251);
  return text;
}

std::shared_ptr<Task> start_send(Engine& engine, int peer, std::int64_t tag,
                                 std::vector<std::byte>& text) {
  return testing_engine::start_message(
      engine, "send", {.peer = peer, .tag = tag, .data = text.data(), .bytes = text.size()});
}

std::shared_ptr<Task> start_receive(Engine& engine, int peer, std::int64_t tag,
                                    std::vector<std::byte>& text) {
  return testing_engine::start_message(engine, "recv",
                                       {.direction = Message::Direction::kReceive,
                                        .peer = peer,
                                        .tag = tag,
                                        .data = text.data(),
                                        .bytes = text.size()});
}

TEST(Messages, OfAllSizesCrossEachOther) {
  constexpr std::uint64_t kRing = kMessageChunks * kMessageChunkBytes;
  const std::uint64_t sizes[] = {0,
                                 1,
                                 kMessageChunkBytes - 1,
                                 kMessageChunkBytes,
                                 kMessageChunkBytes + 1,
                                 kRing,
                                 kRing + 1,
                                 5'000'003};
  const auto outcomes = on_ranks(3, [&](Engine& engine) {
    const int rank = engine.team().rank();
    for (const std::uint64_t bytes : sizes) {
      std::vector<std::shared_ptr<Task>> tasks;
      auto text = text_of(static_cast<std::uint64_t>(rank), bytes);
      std::vector<std::vector<std::byte>> received(3, std::vector<std::byte>(bytes));
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == rank) continue;
        tasks.push_back(start_send(engine, peer, 0, text));
        tasks.push_back(start_receive(engine, peer, 0, received[static_cast<std::size_t>(peer)]));
      }
      for (const auto& task : tasks) engine.wait(*task, soon());
      for (std::size_t peer = 0; peer < 3; ++peer) {
        if (peer == static_cast<std::size_t>(rank)) continue;
        ASSERT_EQ(received[peer], text_of(peer, bytes)) << bytes << " bytes from " << peer;
      }
    }
  });
  EXPECT_EQ(outcomes, std::vector<testing_engine::Outcome>(3));
}

TEST(Messages, AreMatchedByTagAndOfOneTagInTheOrderOfCalls) {
  constexpr std::uint64_t kBytes = 200'001;
  // Two of each tag; in what order they are received.
  const std::int64_t orders[][6] = {
      {0, 1, 2, 0, 1, 2}, {2, 2, 1, 1, 0, 0}, {1, 0, 1, 2, 0, 2}, {2, 1, 0, 0, 1, 2}};
  for (const auto& order : orders) {
    const auto outcomes = on_ranks(2, [&](Engine& engine) {
      if (engine.team().rank() == 0) {
        std::vector<std::vector<std::byte>> texts;
        std::vector<std::shared_ptr<Task>> tasks;
        for (std::uint64_t number = 0; number < 6; ++number) {
          texts.push_back(text_of(number, kBytes + number % 3));
          tasks.push_back(
              start_send(engine, 1, static_cast<std::int64_t>(number % 3), texts.back()));
        }
        for (const auto& task : tasks) engine.wait(*task, soon());
        return;
      }
      std::uint64_t seen[3] = {};
      for (const std::int64_t tag : order) {
        const auto index = static_cast<std::uint64_t>(tag);
        std::vector<std::byte> text(kBytes + index);
        engine.wait(*start_receive(engine, 0, tag, text), soon());
        ASSERT_EQ(text, text_of(index + 3 * seen[index]++, kBytes + index)) << "tag " << tag;
      }
    });
    EXPECT_EQ(outcomes, std::vector<testing_engine::Outcome>(2));
  }
}

TEST(Messages, FromAnyPeerAreThoseOfAllPeers) {
  // Rank 1 leaves before rank 2 sends: who waits for any goes on.
  constexpr std::uint64_t kBytes = 200'001;
  const auto outcomes = on_ranks(3, [&](Engine& engine) {
    const int rank = engine.team().rank();
    if (rank != 0) {
      std::vector<std::byte> token(1);
      if (rank == 2) engine.wait(*start_receive(engine, 0, 1, token), soon());
      auto text = text_of(static_cast<std::uint64_t>(rank), kBytes);
      engine.wait(*start_send(engine, 0, 0, text), soon());
      return;
    }
    for (const int sender : {1, 2}) {
      std::vector<std::byte> text(kBytes);
      const auto task = start_receive(engine, Message::kAnyPeer, 0, text);
      auto token = text_of(0, 1);
      if (sender == 2) engine.wait(*start_send(engine, 2, 1, token), soon());
      engine.wait(*task, soon());
      EXPECT_EQ(task->message.peer, sender);
      EXPECT_EQ(text, text_of(static_cast<std::uint64_t>(sender), kBytes));
    }
  });
  EXPECT_EQ(outcomes, std::vector<testing_engine::Outcome>(3));
}

TEST(Messages, OfAnotherSizeAreAnErrorWhetherTheyCameBeforeOrAfterTheCall) {
  for (const bool came_before : {false, true}) {
    SCOPED_TRACE(::testing::Message() << "came before: " << came_before);
    const auto outcomes = on_ranks(2, [&](Engine& engine) {
      auto text = text_of(0, 10);
      if (engine.team().rank() == 0) {
        if (came_before) engine.wait(*start_send(engine, 1, 5, text), soon());
        engine.wait(*start_send(engine, 1, came_before ? 6 : 5, text), soon());
        return;
      }
      std::vector<std::byte> received(10);
      // While it waits for tag 6, what has tag 5 is put aside.
      if (came_before) engine.wait(*start_receive(engine, 0, 6, received), soon());
      std::vector<std::byte> larger(11);
      engine.wait(*start_receive(engine, 0, 5, larger), soon());
    });
    EXPECT_EQ(outcomes[1].error, "UsageError");
    EXPECT_THAT(outcomes[1].text,
                AllOf(StartsWith(concat("recv number ", came_before ? 1 : 0)),
                      HasSubstr("rank 0 sent 10 bytes with tag 5, this rank receives 11")));
  }
}

TEST(Messages, NobodySendsAreATimeoutThatNamesThePeer) {
  const auto outcomes = on_ranks(3, [&](Engine& engine) {
    if (engine.team().rank() != 0) {
      while (engine.team().check_peers(0).reason == Reason::kNone) std::this_thread::yield();
      return;
    }
    std::vector<std::byte> text(1);
    const Message message{
        .direction = Message::Direction::kReceive, .peer = 2, .data = text.data(), .bytes = 1};
    engine.wait(
        *testing_engine::start_message(engine, "recv", message, std::chrono::milliseconds(20)),
        soon());
  });
  EXPECT_EQ(outcomes[0],
            error_in("TimeoutError", "recv", 0, 0, {2}, std::chrono::milliseconds(20)));
}

TEST(Messages, OneThatIsOnlyPolledEndsAtItsDeadline) {
  const auto outcomes = on_ranks(2, [&](Engine& engine) {
    std::vector<std::byte> text(10);
    if (engine.team().rank() == 1) {
      engine.wait(*start_receive(engine, 0, 0, text), soon());
      return;
    }
    const Message message{
        .direction = Message::Direction::kReceive, .peer = 1, .data = text.data(), .bytes = 10};
    const auto task =
        testing_engine::start_message(engine, "recv", message, std::chrono::milliseconds(20));
    while (!engine.poll(*task)) std::this_thread::yield();
    engine.wait(*task, soon());
  });
  EXPECT_EQ(outcomes[0],
            error_in("TimeoutError", "recv", 0, 0, {1}, std::chrono::milliseconds(20)));
  EXPECT_EQ(outcomes[1], error_in("TimeoutError", "recv", 0, 1, {1}));
}

TEST(Messages, OneWhoseDeadlineBeginsWithTheWaitIsNotLateWhilePolled) {
  std::latch passed(1);
  const auto outcomes = on_ranks(2, [&](Engine& engine) {
    auto text = text_of(0, 10);
    if (engine.team().rank() == 1) {
      passed.wait();
      engine.wait(*start_send(engine, 0, 0, text), soon());
      return;
    }
    std::vector<std::byte> received(10);
    const Message message{
        .direction = Message::Direction::kReceive, .peer = 1, .data = received.data(), .bytes = 10};
    // Its time has passed at once, and a look at it is due.
    const auto task = std::make_shared<Task>("recv", std::chrono::milliseconds(0));
    task->message = message;
    task->deadline_from_wait = true;
    engine.start(task);
    EXPECT_FALSE(engine.poll(*task));
    EXPECT_EQ(engine.failure().reason, "");
    passed.count_down();
    while (!engine.poll(*task)) std::this_thread::yield();
    EXPECT_EQ(received, text);
  });
  EXPECT_EQ(outcomes, std::vector<testing_engine::Outcome>(2));
}

TEST(Messages, NobodySendsToWhoWaitsForAnyIsBlamedOnNobody) {
  const auto outcomes = on_ranks(3, [&](Engine& engine) {
    std::vector<std::byte> text(1);
    if (engine.team().rank() != 0) {
      engine.wait(*start_receive(engine, 0, 0, text), soon());
      return;
    }
    const Message message{.direction = Message::Direction::kReceive,
                          .peer = Message::kAnyPeer,
                          .data = text.data(),
                          .bytes = 1};
    engine.wait(
        *testing_engine::start_message(engine, "recv", message, std::chrono::milliseconds(20)),
        soon());
  });
  EXPECT_EQ(outcomes[0], error_in("TimeoutError", "recv", 0, 0, {}, std::chrono::milliseconds(20)));
  for (const int peer : {1, 2}) {
    EXPECT_EQ(outcomes[static_cast<std::size_t>(peer)], error_in("PeerLost", "recv", 0, peer, {0}));
  }
}

TEST(Messages, WhoLeftMattersOnlyToWhoWaitsForIt) {
  const auto outcomes = on_ranks(3, [&](Engine& engine) {
    std::vector<std::byte> text = text_of(0, 10);
    if (engine.team().rank() == 1) {
      // Only once rank 0 has found out that rank 2 has left.
      engine.wait(*start_receive(engine, 0, 0, text), soon());
      engine.wait(*start_send(engine, 0, 0, text), soon());
    }
    if (engine.team().rank() != 0) return;
    while (engine.team().check_peers(2).reason == Reason::kNone) std::this_thread::yield();
    const auto from_rank_1 = start_receive(engine, 1, 0, text);
    std::vector<std::byte> never(1);
    const auto from_rank_2 = start_receive(engine, 2, 0, never);
    EXPECT_FALSE(engine.wait(*from_rank_1, Deadline::after(std::chrono::milliseconds(10))));
    std::vector<std::byte> go = text_of(0, 10);
    engine.wait(*start_send(engine, 1, 0, go), soon());
    EXPECT_TRUE(engine.wait(*from_rank_1, soon()));
    engine.wait(*from_rank_2, soon());
  });
  EXPECT_EQ(outcomes[0], error_in("PeerLost", "recv", 1, 0, {2}));
  EXPECT_EQ(outcomes[1].error, "");
}

TEST(Messages, OneThreadSendsWhileAnotherWaits) {
  const auto outcomes = on_ranks(2, [&](Engine& engine) {
    const int peer = 1 - engine.team().rank();
    std::vector<std::byte> received(10);
    std::vector<std::byte> sent = text_of(1, 10);
    const auto receive = start_receive(engine, peer, 0, received);
    if (engine.team().rank() == 0) {
      std::thread waiter([&] { engine.wait(*receive, soon()); });
      engine.wait(*start_send(engine, peer, 0, sent), soon());
      waiter.join();
    } else {
      engine.wait(*receive, soon());
      engine.wait(*start_send(engine, peer, 0, sent), soon());
    }
    EXPECT_EQ(received, sent);
  });
  EXPECT_EQ(outcomes, std::vector<testing_engine::Outcome>(2));
}

TEST(Messages, AnErrorThatOneRankFindsIsToldToTheOther) {
  std::latch told(1);
  const auto outcomes = on_ranks(2, [&](Engine& engine) {
    std::vector<std::byte> text(engine.team().rank() == 0 ? 10 : 11);
    if (engine.team().rank() == 0) {
      engine.wait(*start_send(engine, 1, 0, text), soon());
      EXPECT_THROW(engine.wait(*start_receive(engine, 1, 0, text), soon()), PeerLost);
      told.count_down();
    } else {
      EXPECT_THROW(engine.wait(*start_receive(engine, 0, 0, text), soon()), UsageError);
      told.wait();  // It lives on, as a program does that catches the error.
    }
  });
  EXPECT_EQ(outcomes, std::vector<testing_engine::Outcome>(2));
}

TEST(Messages, MoreThanMayBePutAsideIsAnError) {
  constexpr std::uint64_t kBytes = Messages::kMostAsideBytes + 1;
  const auto outcomes = on_ranks(2, [&](Engine& engine) {
    if (engine.team().rank() == 0) {
      // Pages that are only read take no memory.
      void* const zeros =
          ::mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      ASSERT_NE(zeros, MAP_FAILED);
      const Message message{
          .peer = 1, .tag = 1, .data = static_cast<std::byte*>(zeros), .bytes = kBytes};
      const auto task = testing_engine::start_message(engine, "send", message);
      EXPECT_THROW(engine.wait(*task, soon()), PeerLost);
      ::munmap(zeros, kBytes);
      return;
    }
    std::vector<std::byte> text(1);
    engine.wait(*start_receive(engine, 0, 2, text), soon());
  });
  EXPECT_EQ(outcomes[1], error_in("CommError", "recv", 0, 1, {}));
  EXPECT_THAT(outcomes[1].text, HasSubstr(concat("rank 0 sent ", kBytes, " bytes with tags")));
}

}  // namespace
}  // namespace lockstep::shm
