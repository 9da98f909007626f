#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <sys/types.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/internal/gloo_pair_testing.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kMinute{60'000};

struct StopWaiting : Error {
  StopWaiting() : Error("given up") {}
};

// Two ranks in this process over gloo: this thread's calls while_waiting, and a peer's.
class WhileWaiting : public ::testing::Test {
 protected:
  WhileWaiting() {
    auto peer = std::async(std::launch::async, [&] { return gloo_pair(1, store_, {}); });
    own_ = gloo_pair(0, store_, [this] {
      EXPECT_EQ(std::this_thread::get_id(), thread_);
      if (on_call_) on_call_();
    });
    peer_ = peer.get();
  }

  /// `action` once while_waiting was called `count` times from now on, on a thread of the peer.
  std::future<void> after_calls(int count, std::function<void()> action) {
    auto reached = std::make_shared<std::promise<void>>();
    on_call_ = [reached, count]() mutable {
      if (--count == 0) reached->set_value();
    };
    return std::async(std::launch::async, [reached, action = std::move(action)] {
      reached->get_future().wait();
      action();
    });
  }

  static at::Tensor message(int number) { return at::full({100'003}, number); }

  const std::thread::id thread_ = std::this_thread::get_id();
  const c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
  std::function<void()> on_call_;
  ProcessGroup own_;
  ProcessGroup peer_;
};

// Waits are interrupted to call it; the message is none the worse.
TEST_F(WhileWaiting, AMessageComesAfterInterruptedWaits) {
  at::Tensor received = at::zeros({100'003}, at::kLong);
  auto sending = after_calls(3, [&] { peer_.send(message(7), 0); });
  own_.recv(received, 1);
  EXPECT_TRUE(received.equal(message(7)));
  sending.get();
  received.zero_();
  auto receiving = after_calls(3, [&] { peer_.recv(received, 0); });
  own_.send(message(8), 1);
  receiving.get();
  EXPECT_TRUE(received.equal(message(8)));
}

TEST_F(WhileWaiting, EndsTheWaitForAMessage) {
  on_call_ = [] { throw StopWaiting(); };
  at::Tensor received = at::zeros({100'003}, at::kLong);
  EXPECT_THROW(own_.recv(received, 1), StopWaiting);
}

// Neither where it is waited for here nor by a thread that polling has started.
TEST_F(WhileWaiting, AMessageThatIsAbortedIsNotReceived) {
  for (const bool polls : {false, true}) {
    std::vector<at::Tensor> received{at::zeros({3}, at::kLong)};
    const auto work = own_.c10d_backend()->recv(received, 1, 5);
    EXPECT_FALSE(polls && work->isCompleted());
    auto aborting = std::async(std::launch::async, [&] { work->abort(); });
    EXPECT_ANY_THROW(work->wait(kMinute)) << polls;
    EXPECT_FALSE(work->isSuccess());
    EXPECT_NE(work->exception(), nullptr);
    aborting.get();
  }
}

std::set<pid_t> threads_of_process() {
  std::set<pid_t> threads;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    threads.insert(std::stoi(thread.path().filename()));
  }
  return threads;
}

TEST_F(WhileWaiting, AMessageNeedsNoThreadOfItsOwn) {
  std::set<pid_t> first;
  std::set<pid_t> peers;
  for (int number = 0; number < 4; ++number) {
    at::Tensor received = at::zeros({100'003}, at::kLong);
    std::promise<void> may_send;
    pid_t peer_id = 0;
    std::thread peer([&] {
      peer_id = ::gettid();
      may_send.get_future().wait();
      peer_.send(message(number), 0);
    });
    std::set<pid_t> during;
    on_call_ = [&] {
      if (!during.empty()) return;
      during = threads_of_process();
      may_send.set_value();
    };
    own_.recv(received, 1);
    peer.join();
    peers.insert(peer_id);
    EXPECT_TRUE(received.equal(message(number)));
    ASSERT_FALSE(during.empty());
    if (number == 0) first = during;
    for (const pid_t thread : during) {
      EXPECT_TRUE(first.contains(thread) || peers.contains(thread)) << "for message " << number;
    }
  }
}

TEST_F(WhileWaiting, IsCompletedCallsItOnTheThreadThatStartedTheWork) {
  at::Tensor received = at::zeros({100'003}, at::kLong);
  const Work work = own_.recv(received, 1, 0, {.async_op = true});
  auto sending = after_calls(3, [&] { peer_.send(message(9), 0); });
  std::thread other([&] {
    while (!work.is_completed()) std::this_thread::yield();
  });
  while (!work.is_completed()) std::this_thread::yield();
  other.join();
  sending.get();
  work.wait();
  EXPECT_TRUE(received.equal(message(9)));
}

TEST_F(WhileWaiting, EndsAWaitForAKeyOfTheGroupsStore) {
  on_call_ = [] { throw StopWaiting(); };
  EXPECT_THROW(own_.c10d_store()->wait({"never"}, kMinute), StopWaiting);
}

// It is for the thread that made the group alone.
TEST_F(WhileWaiting, IsNotCalledByOthersThatWaitForTheStore) {
  const auto store = own_.c10d_store();
  std::thread other(
      [&] { EXPECT_THROW(store->wait({"never"}, std::chrono::milliseconds(1)), c10::Error); });
  other.join();
}

}  // namespace
}  // namespace lockstep
