#include "lockstep/comm/backends/gloo/gloo_backend.h"

#include <chrono>
#include <stdexcept>
#include <thread>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/comm/internal/silent_store_testing.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kLong{60'000};

struct GivenUp : std::runtime_error {
  GivenUp() : std::runtime_error("given up") {}
};

BackendConfig config_of(int rank, c10::intrusive_ptr<c10d::Store> store) {
  return BackendConfig{.store = std::move(store),
                       .rank = rank,
                       .world_size = 2,
                       .local_rank = rank,
                       .local_world_size = 2,
                       .timeout = kLong,
                       .connect_timeout = kLong,
                       .local_address = "127.0.0.1",
                       .group_name = "test"};
}

// Of a peer that has said where it listens, and dies or stops before it has connected.
TEST(GlooConnect, IsLeftForAPeerThatNeverConnects) {
  /// What one rank writes, the other reads; but the second learns nothing of the first.
  struct Peer : SilentStore {
    explicit Peer(c10::intrusive_ptr<c10d::Store> store) : shared(std::move(store)) {}
    void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
      shared->set(key, value);
    }
    c10::intrusive_ptr<c10d::Store> shared;
  };
  const auto shared = c10::make_intrusive<c10d::HashStore>();
  const auto peers = c10::make_intrusive<Peer>(shared);
  std::thread peer([&] { EXPECT_ANY_THROW(make_gloo_backend(config_of(1, peers))); });
  peers->wait_until_asked();  // By now it has said where it listens.
  BackendConfig own = config_of(0, shared);
  int looks = 0;
  own.while_waiting = [&] {
    if (++looks == 20) throw GivenUp();
  };
  EXPECT_THROW(make_gloo_backend(own), GivenUp);
  own.store.reset();
  // No thread that was left behind keeps it: its server may be this rank, whose port is free now.
  const Deadline deadline = Deadline::after(kLong);
  while (shared.use_count() > 2 && !deadline.passed()) std::this_thread::yield();
  EXPECT_EQ(shared.use_count(), 2U) << "here, and with the peer";
  peers->end();
  peer.join();
}

// The peer ended normally long before this rank waits.
TEST(GlooConnections, ThatAreLostFailNoCompleteCollective) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const CallTerms terms{.timeout = kLong};
  const auto sum_of = [&](int rank) {
    const auto backend = make_gloo_backend(config_of(rank, store));
    at::Tensor tensor = at::full({3}, rank + 1);
    const auto work = backend->all_reduce(tensor, ReduceOp::kSum, terms);
    if (rank == 1) {
      work->wait(kLong);
      return tensor;
    }
    const auto begun = Deadline::Clock::now();
    const Deadline deadline = Deadline::after(kLong);
    while (!backend->is_cut_off(begun) && !deadline.passed()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    EXPECT_FALSE(deadline.passed());
    EXPECT_TRUE(work->isCompleted());
    work->wait(kLong);
    return tensor;
  };
  std::thread peer([&] { sum_of(1); });
  EXPECT_TRUE(at::equal(sum_of(0), at::full({3}, 3)));
  peer.join();
}

}  // namespace
}  // namespace lockstep
