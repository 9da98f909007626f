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

Deadline now() {
  return Deadline::after(std::chrono::milliseconds(0));
}

class WorkerLinkTest : public testing::Test {
 protected:
  const WorkerLink link_ = make_worker_link();
};

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
    const auto got = receive_frame(link_.launcher.get(), now());
    ASSERT_TRUE(got);
    EXPECT_TRUE(got->file.valid());
    EXPECT_FALSE(is_closed());
  }
  EXPECT_TRUE(is_closed());
}

TEST_F(WorkerLinkTest, SaysThatTheOtherSideIsGone) {
  WorkerLink link = make_worker_link();
  link.worker.reset();
  EXPECT_FALSE(send_frame(link.launcher.get(), "x", -1));
  EXPECT_THROW(receive_frame(link.launcher.get(), now()), PeerLost);
}

TEST_F(WorkerLinkTest, NeverWaitsForOneThatDoesNotRead) {
  const std::string bytes(10'000, 'x');
  int sent = 0;
  while (send_frame(link_.worker.get(), bytes, -1)) ++sent;
  EXPECT_GT(sent, 0);
}

TEST_F(WorkerLinkTest, RefusesWhatIsTooLong) {
  EXPECT_FALSE(send_frame(link_.worker.get(), std::string(70'000, 'x'), -1));
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
  ASSERT_TRUE(send_frame(other.worker.get(), "x", -1));
  EXPECT_TRUE(is_awake());
  set.remove(other.launcher.get());
  EXPECT_FALSE(is_awake());
}

}  // namespace
}  // namespace lockstep
