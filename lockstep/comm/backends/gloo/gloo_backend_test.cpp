#include "lockstep/comm/backends/gloo/gloo_backend.h"

#include <chrono>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/comm/internal/silent_store_testing.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kLong{60'000};

struct GivenUp : std::runtime_error {
  GivenUp() : std::runtime_error("given up") {}
};

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
  const auto config_of = [](int rank, c10::intrusive_ptr<c10d::Store> store) {
    return BackendConfig{.store = std::move(store),
                         .rank = rank,
                         .world_size = 2,
                         .local_rank = rank,
                         .local_world_size = 2,
                         .timeout = kLong,
                         .connect_timeout = kLong,
                         .local_address = "127.0.0.1",
                         .group_name = "test"};
  };
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

}  // namespace
}  // namespace lockstep
