#include "lockstep/comm/internal/watched_store.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "lockstep/comm/internal/silent_store_testing.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLongWait{60'000};

struct Told : std::runtime_error {
  Told() : std::runtime_error("told") {}
};

TEST(WatchedStoreTest, AWaitEndsWithWhatItsCheckThrows) {
  int looks = 0;
  WatchedStore store(c10::make_intrusive<c10d::HashStore>(), [&] {
    if (++looks == 3) throw Told();
  });
  EXPECT_THROW(store.wait({"never"}, kLongWait), Told);
}

TEST(WatchedStoreTest, AQuestionToAStoreThatIsSilentEndsToo) {
  const auto silent = c10::make_intrusive<SilentStore>();
  std::atomic<bool> is_told = false;
  WatchedStore store(silent, [&] {
    if (is_told) throw Told();
  });
  std::thread other([&] {
    silent->wait_until_asked();
    is_told = true;
  });
  EXPECT_THROW(store.check({"key"}), Told);
  other.join();
  silent->end();
}

TEST(WatchedStoreTest, WaitsAsTheStoreUnderneath) {
  const c10::intrusive_ptr<c10d::Store> underneath = c10::make_intrusive<c10d::HashStore>();
  WatchedStore store(underneath, [] {});
  EXPECT_THROW(store.wait({"never"}, milliseconds(30)), c10::Error);
  std::thread other([&] { underneath->set("key", std::string("value")); });
  store.wait({"key"}, kLongWait);
  EXPECT_EQ(store.get_to_str("key"), "value");
  other.join();
}

TEST(WatchedStoreTest, OnceItIsLetGoNothingHoldsTheStoreUnderneath) {
  const c10::intrusive_ptr<c10d::Store> underneath = c10::make_intrusive<c10d::HashStore>();
  WatchedStore store(underneath);
  store.let_go();
  EXPECT_EQ(underneath.use_count(), 1U);
  EXPECT_THROW(store.wait({"key"}, kLongWait), c10::Error);
  EXPECT_THROW(store.set("key", std::string("value")), c10::Error);
}

}  // namespace
}  // namespace lockstep
