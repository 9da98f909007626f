#include "lockstep/rpc/internal/local_transport.h"

#include <array>
#include <atomic>
#include <condition_variable>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "lockstep/base/error.h"
#include "lockstep/rpc/internal/transport_error.h"

namespace lockstep::rpc {
namespace {

using std::chrono::milliseconds;
using torch::distributed::rpc::Message;
using torch::distributed::rpc::MessageType;
constexpr std::chrono::seconds kLong{100};
constexpr std::size_t kNoLimit = std::size_t{1} << 30;

// Answers with what it is asked, or never.
class Echo final : public LocalTransport::Receiver {
 public:
  LocalTransport::Answer serve(Message& request, std::vector<c10::Stream>) override {
    ++served;
    auto answer = c10::make_intrusive<c10::ivalue::Future>(at::AnyClassType::get());
    if (is_mute) return answer;
    auto message =
        c10::make_intrusive<Message>(std::move(request.payload()), std::move(request.tensors()),
                                     MessageType::PYTHON_RET, request.id());
    answer->markCompleted(message, message->getStorages());
    return answer;
  }
  LocalTransport::Answer refuse_large(std::size_t size_bytes, std::int64_t) override {
    auto answer = c10::make_intrusive<c10::ivalue::Future>(at::AnyClassType::get());
    answer->setError(std::make_exception_ptr(UsageError(std::to_string(size_bytes) + " bytes")));
    return answer;
  }
  void note_lost(int rank) override {
    const std::lock_guard lock(mutex_);
    lost_ = rank;
    told_before_lost_ = told_.load();
    changed_.notify_all();
  }
  void note_told_of_loss(std::int64_t rank) noexcept override { told_ = rank; }
  void note_never_sent() noexcept override { ++forgotten; }
  std::int64_t told_before_lost() const { return told_before_lost_; }
  int wait_for_lost() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kLong, [this] { return lost_ >= 0; });
    return lost_;
  }

  bool is_mute = false;
  std::atomic<int> served{0};
  std::atomic<int> forgotten{0};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int lost_ = -1;
  std::int64_t told_before_lost_ = -1;
  std::atomic<std::int64_t> told_{-1};
};

std::array<UniqueFd, 2> socket_pair() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::unordered_map<int, UniqueFd> to_rank(int rank, UniqueFd socket) {
  std::unordered_map<int, UniqueFd> sockets;
  sockets.emplace(rank, std::move(socket));
  return sockets;
}

c10::intrusive_ptr<Message> request_of(std::vector<at::Tensor> tensors) {
  return c10::make_intrusive<Message>(std::vector<char>{'a', 'b', 'c'}, std::move(tensors),
                                      MessageType::PYTHON_CALL);
}

std::string error_of(const LocalTransport::Answer& answer) {
  answer->wait();
  return answer->tryRetrieveErrorMessage();
}

// Ranks 0 and 1.
struct Two {
  explicit Two(std::size_t most_bytes_of_1 = kNoLimit) : sockets(socket_pair()) {
    zero.emplace(to_rank(1, std::move(sockets[0])), kNoLimit, receiver_0);
    one.emplace(to_rank(0, std::move(sockets[1])), most_bytes_of_1, receiver_1);
  }
  void start() {
    zero->start();
    one->start();
  }

  Echo receiver_0;
  Echo receiver_1;
  std::array<UniqueFd, 2> sockets;
  std::optional<LocalTransport> zero;
  std::optional<LocalTransport> one;
};

TEST(LocalTransport, ManyCallsBothWaysAreAnswered) {
  Two two;
  two.start();
  std::vector<std::pair<std::int64_t, LocalTransport::Answer>> answers;
  for (const std::int64_t elements : {0, 1, 7, 1 << 20, 3, 10'000'019, 5}) {
    for (LocalTransport* from : {&*two.zero, &*two.one}) {
      const auto request = request_of({at::arange(elements, at::kInt)});
      const int target = from == &*two.zero ? 1 : 0;
      answers.emplace_back(elements, from->send(target, *request, kLong));
    }
  }
  for (const auto& [elements, answer] : answers) {
    answer->wait();
    ASSERT_FALSE(answer->hasError()) << answer->tryRetrieveErrorMessage();
    const auto message = answer->value().toCustomClass<Message>();
    EXPECT_EQ(message->payload(), (std::vector<char>{'a', 'b', 'c'}));
    EXPECT_TRUE(at::equal(message->tensors().at(0), at::arange(elements, at::kInt)));
  }
}

// Blocks of memory carry them there and back; each side's tensor is its own.
TEST(LocalTransport, LargeTensorsAreThoseOfWhoGetsThem) {
  at::Tensor kept;
  const at::Tensor sent = at::arange(1'000'003, at::kInt);
  {
    Two two;
    two.start();
    for (int i = 0; i < 5; ++i) {
      const auto answer = two.zero->send(1, *request_of({sent, sent.view({1, -1}).t()}), kLong);
      answer->wait();
      ASSERT_FALSE(answer->hasError()) << answer->tryRetrieveErrorMessage();
      const auto tensors = answer->value().toCustomClass<Message>()->tensors();
      EXPECT_TRUE(at::equal(tensors.at(0), sent));
      EXPECT_TRUE(at::equal(tensors.at(1), sent.view({-1, 1})));
      if (i == 2) kept = tensors.at(0);
      if (i > 2) tensors.at(0).fill_(-1);
    }
    EXPECT_TRUE(at::equal(sent, at::arange(1'000'003, at::kInt)));
  }
  EXPECT_TRUE(at::equal(kept, sent)) << "it outlives the connection";
}

TEST(LocalTransport, MemoryOfATensorThatEndedIsUsedAgain) {
  Two two;
  two.start();
  std::vector<const void*> places;
  std::vector<at::Tensor> kept;
  for (int i = 0; i < 4; ++i) {
    const auto answer = two.zero->send(1, *request_of({at::ones({1'000'003})}), kLong);
    answer->wait();
    const auto message = answer->value().toCustomClass<Message>();
    places.push_back(message->tensors().at(0).const_data_ptr());
    if (i == 2) kept = message->tensors();
  }
  EXPECT_EQ(places[1], places[0]);
  EXPECT_EQ(places[2], places[0]);
  EXPECT_NE(places[3], places[2]) << "the tensor there lives";
}

TEST(LocalTransport, NoAnswerIsATimeout) {
  Two two;
  two.receiver_1.is_mute = true;
  two.start();
  const auto late = two.zero->send(1, *request_of({}), kLong);
  EXPECT_TRUE(is_timeout(error_of(two.zero->send(1, *request_of({}), milliseconds(20)))));
  EXPECT_TRUE(is_timeout(error_of(two.zero->send(1, *request_of({}), milliseconds(1)))));
  EXPECT_FALSE(late->completed());
}

TEST(LocalTransport, WhoNeverReadsHoldsNobodyUp) {
  Two two;
  two.zero->start();  // The other reads nothing.
  auto large = c10::make_intrusive<Message>(std::vector<char>(20'000'000),
                                            std::vector<at::Tensor>(), MessageType::PYTHON_CALL);
  const auto answer = two.zero->send(1, *large, milliseconds(20));
  EXPECT_TRUE(is_timeout(error_of(answer)));
  EXPECT_EQ(two.receiver_0.forgotten, 0);
  const auto behind = two.zero->send(1, *request_of({}), milliseconds(20));
  EXPECT_TRUE(is_timeout(error_of(behind)));
  EXPECT_EQ(two.receiver_0.forgotten, 1) << "what waited behind it is not sent";
}

TEST(LocalTransport, AConnectionThatEndsEndsItsCalls) {
  Two two;
  two.receiver_1.is_mute = true;
  two.start();
  const auto before = two.zero->send(1, *request_of({}), kLong);
  two.one->stop();
  EXPECT_TRUE(is_connection_error(error_of(before)));
  EXPECT_EQ(two.receiver_0.wait_for_lost(), 1);
  EXPECT_TRUE(is_connection_error(error_of(two.zero->send(1, *request_of({}), kLong))));
}

// However it is read: whose end was the first is known when the second is noticed.
TEST(LocalTransport, WhoFollowsALossHasToldOfIt) {
  for (const bool by_who_waits : {false, true}) {
    Two two;
    const auto answer = two.zero->send(1, *request_of({}), kLong);
    two.one->notify_loss(7);
    two.one->stop();
    if (by_who_waits) {
      for (int i = 0; i < 100; ++i) two.zero->poll_for(*answer, 1);
    }
    two.zero->start();
    EXPECT_EQ(two.receiver_0.wait_for_lost(), 1);
    EXPECT_EQ(two.receiver_0.told_before_lost(), 7);
  }
}

TEST(LocalTransport, StoppingEndsItsCalls) {
  Two two;
  two.receiver_1.is_mute = true;
  two.start();
  const auto before = two.zero->send(1, *request_of({}), kLong);
  two.zero->stop();
  EXPECT_TRUE(is_connection_error(error_of(before)));
  EXPECT_TRUE(is_connection_error(error_of(two.zero->send(1, *request_of({}), kLong))));
}

TEST(LocalTransport, WhatIsTooLargeIsRefusedAndTheNextServed) {
  Two two(1000);
  two.start();
  const auto large = two.zero->send(1, *request_of({at::ones({1'000'000}, at::kByte)}), kLong);
  const auto small = two.zero->send(1, *request_of({at::ones({3})}), kLong);
  EXPECT_NE(error_of(large).find("1000003 bytes"), std::string::npos) << error_of(large);
  EXPECT_FALSE(is_connection_error(error_of(large)));
  small->wait();
  EXPECT_FALSE(small->hasError());
}

TEST(LocalTransport, WhoWaitsReadsForItself) {
  Two two;
  two.one->start();  // Nobody else reads what comes to rank 0.
  const auto first = two.zero->send(1, *request_of({at::ones({100'000})}), kLong);
  const auto second = two.zero->send(1, *request_of({at::ones({3})}), kLong);
  const auto poll_for = [&](const LocalTransport::Answer& answer) {
    const Deadline deadline = Deadline::after(kLong);
    while (!answer->completed() && !deadline.passed()) two.zero->poll_for(*answer, 1);
  };
  bool has_followed = false;
  first->addCallback([&](c10::ivalue::Future&) { has_followed = true; });
  poll_for(second);
  EXPECT_TRUE(second->completed());
  EXPECT_FALSE(has_followed) << "what others wait for is left to the transport's thread";
  two.zero->start();
  first->wait();
  EXPECT_FALSE(first->hasError());
  const auto third = two.one->send(0, *request_of({}), kLong);
  third->wait();
  EXPECT_FALSE(third->hasError()) << third->tryRetrieveErrorMessage();
}

TEST(LocalTransport, WhatFollowsAnAnswerMayFail) {
  Two two;
  two.start();
  for (int i = 0; i < 3; ++i) {
    const auto answer = two.zero->send(1, *request_of({}), kLong);
    try {
      answer->addCallback([](c10::ivalue::Future&) { throw std::runtime_error("no more"); });
    } catch (const std::runtime_error&) {  // The answer was there already: it runs at once.
    }
    answer->wait();
  }
  const auto next = two.zero->send(1, *request_of({}), kLong);
  next->wait();
  EXPECT_FALSE(next->hasError());
}

// However it is read: of what follows nothing is served.
TEST(LocalTransport, NothingIsReadAfterWhatMakesNoSense) {
  for (const bool by_who_waits : {false, true}) {
    auto sockets = socket_pair();
    Echo receiver;
    LocalTransport transport(to_rank(1, std::move(sockets[0])), kNoLimit, receiver);
    const auto answer = transport.send(1, *request_of({}), kLong);
    std::vector<char> noise(150'000, '\xff');  // More than is read at once.
    const auto frame = to_outgoing({.id = 0, .parcel = {{'x'}, {}}});
    noise.insert(noise.end(), frame.head.begin(), frame.head.end());
    noise.insert(noise.end(), frame.bytes.begin(), frame.bytes.end());
    ASSERT_EQ(::send(sockets[1].get(), noise.data(), noise.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(noise.size()));
    if (by_who_waits) {
      for (int i = 0; i < 100; ++i) transport.poll_for(*answer, 1);
    }
    transport.start();
    EXPECT_EQ(receiver.wait_for_lost(), 1);
    EXPECT_TRUE(is_connection_error(error_of(answer)));
    EXPECT_EQ(receiver.served, 0);
  }
}

TEST(LocalTransport, WhatMakesNoSenseClosesTheConnection) {
  auto sockets = socket_pair();
  Echo receiver;
  LocalTransport transport(to_rank(1, std::move(sockets[0])), kNoLimit, receiver);
  transport.start();
  const std::string noise(1000, '\xff');
  EXPECT_EQ(::send(sockets[1].get(), noise.data(), noise.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(noise.size()));
  EXPECT_EQ(receiver.wait_for_lost(), 1);
}

}  // namespace
}  // namespace lockstep::rpc
