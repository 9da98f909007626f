#include "lockstep/job/internal/worker_link.h"

#include <cstring>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/os/files/pipe.h"
#include "lockstep/os/socket/wake_set.h"

namespace lockstep {
namespace {

using Word = LinkMessage::Kind;

Deadline now() {
  return Deadline::after(std::chrono::milliseconds(0));
}

class WorkerLinkTest : public testing::Test {
 protected:
  const WorkerLink link_ = make_worker_link();
};

TEST_F(WorkerLinkTest, PassesAPlaceWithADescriptor) {
  const LinkMessage place{.kind = Word::kPlace, .generation = 7, .lines = {"RANK=1", "", "A= b\n"}};
  Pipe pipe = make_pipe();
  ASSERT_TRUE(send_message(link_.launcher.get(), place, pipe.read_end.get()));
  const auto got = receive_message(link_.worker.get(), now());
  ASSERT_TRUE(got);
  EXPECT_EQ(got->kind, Word::kPlace);
  EXPECT_EQ(got->generation, 7);
  EXPECT_EQ(got->lines, place.lines);
  ASSERT_EQ(::write(pipe.write_end.get(), "x", 1), 1);
  char letter = 0;
  EXPECT_EQ(::read(got->fd.get(), &letter, 1), 1);
}

TEST_F(WorkerLinkTest, KeepsMessagesWholeAndInOrder) {
  ASSERT_TRUE(send_message(link_.worker.get(), {.kind = Word::kKeepsState, .generation = 1}));
  ASSERT_TRUE(send_message(link_.worker.get(),
                           {.kind = Word::kLeftGroup, .generation = 1, .lines = {"why"}}));
  EXPECT_EQ(receive_message(link_.launcher.get(), now())->kind, Word::kKeepsState);
  const auto second = receive_message(link_.launcher.get(), now());
  EXPECT_EQ(second->kind, Word::kLeftGroup);
  EXPECT_EQ(second->lines, std::vector<std::string>{"why"});
  EXPECT_FALSE(second->fd.valid());
  EXPECT_FALSE(receive_message(link_.launcher.get(), now()));
}

// Launchers and workers of other versions read them.
TEST_F(WorkerLinkTest, KindsKeepTheirNumbersAndMessagesTheirForm) {
  constexpr std::pair<Word, char> kNumbers[] = {
      {Word::kKeepsState, 1}, {Word::kLeftGroup, 2}, {Word::kDone, 3},         {Word::kMemory, 4},
      {Word::kTookPlace, 5},  {Word::kCalls, 6},     {Word::kWaitedInVain, 7}, {Word::kPlace, 8},
      {Word::kLeave, 9},      {Word::kGivesUp, 10}};
  for (const auto& [kind, number] : kNumbers) {
    ASSERT_TRUE(send_message(link_.worker.get(),
                             {.kind = kind, .generation = 12, .lines = {"one", "two"}}));
    char bytes[64] = {};
    const ssize_t got = ::recv(link_.launcher.get(), bytes, sizeof bytes, 0);
    ASSERT_GT(got, 0);
    std::string expected(1, number);
    expected += std::string("12\0one\0two", 10);
    EXPECT_EQ(std::string(bytes, static_cast<std::size_t>(got)), expected) << int{number};
  }
  EXPECT_STREQ(LinkMessage::kLate, "late");
  EXPECT_STREQ(LinkMessage::kFollows, "follows");
}

TEST_F(WorkerLinkTest, PassesOverWhatIsNoMessage) {
  for (const std::string text : {"x", "\x01", "\x01x",
                                 "\x01"
                                 "1x",
                                 "\x0b"
                                 "1"}) {
    ASSERT_EQ(::send(link_.worker.get(), text.data(), text.size(), 0),
              static_cast<ssize_t>(text.size()));
  }
  ASSERT_TRUE(send_message(link_.worker.get(), {.kind = Word::kDone, .generation = 3}));
  EXPECT_EQ(receive_message(link_.launcher.get(), now())->kind, Word::kDone);
}

// The other end of a pipe tells when no descriptor of it is left.
TEST_F(WorkerLinkTest, KeepsNoDescriptorBeyondTheOneOfAMessage) {
  Pipe pipe = make_pipe();
  const int fds[2] = {pipe.write_end.get(), pipe.write_end.get()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fds)] = {};
  std::string text = "\x03";
  text += "1";
  iovec part{.iov_base = text.data(), .iov_len = text.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  cmsghdr* const passed = CMSG_FIRSTHDR(&header);
  passed->cmsg_level = SOL_SOCKET;
  passed->cmsg_type = SCM_RIGHTS;
  passed->cmsg_len = CMSG_LEN(sizeof fds);
  std::memcpy(CMSG_DATA(passed), fds, sizeof fds);
  ASSERT_EQ(::sendmsg(link_.worker.get(), &header, 0), static_cast<ssize_t>(text.size()));
  pipe.write_end.reset();
  const auto is_closed = [&] {
    pollfd end{.fd = pipe.read_end.get(), .events = POLLIN, .revents = 0};
    return ::poll(&end, 1, 0) == 1 && (end.revents & POLLHUP) != 0;
  };
  {
    const auto got = receive_message(link_.launcher.get(), now());
    ASSERT_TRUE(got);
    EXPECT_TRUE(got->fd.valid());
    EXPECT_FALSE(is_closed());
  }
  EXPECT_TRUE(is_closed());
}

TEST_F(WorkerLinkTest, SaysThatTheOtherSideIsGone) {
  WorkerLink link = make_worker_link();
  link.worker.reset();
  EXPECT_FALSE(send_message(link.launcher.get(), {}));
  EXPECT_THROW(receive_message(link.launcher.get(), now()), PeerLost);
}

TEST_F(WorkerLinkTest, LastWordsArriveFromOneThatLeftSomeUnread) {
  WorkerLink link = make_worker_link();
  ASSERT_TRUE(send_message(link.launcher.get(), {.kind = Word::kLeave, .generation = 3}));
  ASSERT_TRUE(send_message(link.worker.get(), {.kind = Word::kGivesUp, .generation = 3}));
  link.worker.reset();
  const auto got = receive_message(link.launcher.get(), now());
  ASSERT_TRUE(got);
  EXPECT_EQ(got->kind, Word::kGivesUp);
  EXPECT_THROW(receive_message(link.launcher.get(), now()), PeerLost);
}

TEST_F(WorkerLinkTest, NeverWaitsForOneThatDoesNotRead) {
  const LinkMessage message{.kind = Word::kLeftGroup, .lines = {std::string(10'000, 'x')}};
  int sent = 0;
  while (send_message(link_.worker.get(), message)) ++sent;
  EXPECT_GT(sent, 0);
}

TEST_F(WorkerLinkTest, RefusesWhatIsTooLong) {
  EXPECT_FALSE(send_message(link_.worker.get(), {.lines = {std::string(70'000, 'x')}}));
}

TEST_F(WorkerLinkTest, IsToldFromOtherDescriptors) {
  EXPECT_TRUE(is_worker_link(link_.worker.get()));
  EXPECT_FALSE(is_worker_link(make_pipe().read_end.get()));
  EXPECT_FALSE(is_worker_link(-1));
}

TEST_F(WorkerLinkTest, WakesWhoWaitsForSeveral) {
  WakeSet set;
  const WorkerLink other = make_worker_link();
  set.add(link_.launcher.get());
  set.add(other.launcher.get());
  const auto is_awake = [&] {
    pollfd entry{.fd = set.fd(), .events = POLLIN, .revents = 0};
    return ::poll(&entry, 1, 0) == 1;
  };
  EXPECT_FALSE(is_awake());
  ASSERT_TRUE(send_message(other.worker.get(), {}));
  EXPECT_TRUE(is_awake());
  set.remove(other.launcher.get());
  EXPECT_FALSE(is_awake());
}

}  // namespace
}  // namespace lockstep
