#include "lockstep/job/internal/worker_message.h"

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/job/internal/worker_link.h"
#include "lockstep/os/files/pipe.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using namespace std::string_literals;

Deadline at_once() {
  return Deadline::after(milliseconds(0));
}

class WorkerMessageTest : public testing::Test {
 protected:
  static std::string bytes_at(int fd) {
    char bytes[256] = {};
    const ssize_t got = ::recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    return {bytes, got < 0 ? 0 : static_cast<std::size_t>(got)};
  }
  void send_to_launcher(std::string_view bytes) {
    ASSERT_EQ(::send(link_.worker.get(), bytes.data(), bytes.size(), 0), std::ssize(bytes));
  }
  void send_to_worker(std::string_view bytes) {
    ASSERT_EQ(::send(link_.launcher.get(), bytes.data(), bytes.size(), 0), std::ssize(bytes));
  }

  const WorkerLink link_ = make_worker_link();
};

struct WorkerBytes {
  WorkerMessage message;
  std::string bytes;
};

std::vector<WorkerBytes> all_of_a_worker() {
  return {
      {KeepsState{.reads_within = milliseconds(250)},
       "\x01"
       "0\0"
       "250"s},
      {LeftGroup{.generation = 12, .text = "a peer is gone", .step = 7},
       "\x02"
       "12\0a peer is gone\0\0"
       "7"s},
      {LeftGroup{.generation = 12, .text = "t", .cause = LeftGroup::Cause::kLateRank, .step = 0},
       "\x02"
       "12\0t\0late\0"
       "0"s},
      {LeftGroup{.generation = 1, .cause = LeftGroup::Cause::kOtherWorker},
       "\x02"
       "1\0\0follows\0"s},
      {TrainingDone{},
       "\x03"
       "0"s},
      {StateFile{},
       "\x04"
       "0"s},
      {TookRank{.generation = 18'446'744'073'709'551'615U},
       "\x05"
       "18446744073709551615"s},
      {CallsFile{},
       "\x06"
       "0"s},
      {DeadlineExpired{.operation = "all_reduce",
                       .group = "world",
                       .sequence = 3,
                       .waited = milliseconds(30'000)},
       "\x07"
       "0\0all_reduce\0world\0"
       "3\0"
       "30000"s},
      {DeadlineExpired{.operation = "connect", .group = ""},
       "\x07"
       "0\0connect\0\0\0"
       "0"s},
      {TrainingDone{.is_complete = false},
       "\x03"
       "0\0incomplete"s},
      {CannotRecover{},
       "\x0a"
       "0"s},
      {PythonStacksPipe{.signal = 63},
       "\x0c"
       "0\0"
       "63"s},
  };
}

// Launchers and workers of other versions read them.
TEST_F(WorkerMessageTest, ThoseOfAWorkerKeepTheirBytesAndArriveAsTheyWere) {
  for (const auto& [message, bytes] : all_of_a_worker()) {
    ASSERT_TRUE(send_message(link_.worker.get(), message));
    EXPECT_EQ(bytes_at(link_.launcher.get()), bytes) << message.index();
    send_to_launcher(bytes);
    const auto got = receive_from_worker(link_.launcher.get(), at_once());
    ASSERT_TRUE(got) << message.index();
    EXPECT_EQ(got->message, message) << message.index();
    EXPECT_FALSE(got->file.valid());
  }
}

TEST_F(WorkerMessageTest, ThoseOfALauncherKeepTheirBytesAndArriveAsTheyWere) {
  const std::vector<std::pair<LauncherMessage, std::string>> all = {
      {Place{.generation = 7, .environment = {"RANK=1", "", "A= b\n"}},
       "\x08"
       "7\0RANK=1\0\0A= b\n"s},
      {Place{.generation = 2},
       "\x08"
       "2"s},
      {LeaveGroup{.generation = 9},
       "\x09"
       "9"s},
      {KeptStateFile{},
       "\x0b"
       "0"s},
  };
  for (const auto& [message, bytes] : all) {
    ASSERT_TRUE(send_message(link_.launcher.get(), message));
    EXPECT_EQ(bytes_at(link_.worker.get()), bytes);
    send_to_worker(bytes);
    const auto got = receive_from_launcher(link_.worker.get(), at_once());
    ASSERT_TRUE(got);
    EXPECT_EQ(got->message, message);
  }
}

// Programs of earlier versions give a generation with every message.
TEST_F(WorkerMessageTest, ReadsThoseOfOtherVersions) {
  const std::vector<std::pair<std::string, WorkerMessage>> all = {
      {"\x01"
       "3"s,
       KeepsState{}},
      {"\x01"
       "3\0x\0more"s,
       KeepsState{}},
      {"\x02"
       "3"s,
       LeftGroup{.generation = 3}},
      {"\x02"
       "3\0why\0another\0step"s,
       LeftGroup{.generation = 3, .text = "why"}},
      {"\x03"
       "3\0more"s,
       TrainingDone{}},
      {"\x0a"
       "3"s,
       CannotRecover{}},
  };
  for (const auto& [bytes, message] : all) {
    send_to_launcher(bytes);
    const auto got = receive_from_worker(link_.launcher.get(), at_once());
    ASSERT_TRUE(got);
    EXPECT_EQ(got->message, message);
  }
}

TEST_F(WorkerMessageTest, IgnoresWhatIsNoMessage) {
  for (const std::string& bytes : {"x"s, "\x01"s, "\x01x"s,
                                   "\x01"
                                   "1x"s,
                                   "\x01"
                                   "99999999999999999999999"s,
                                   "\0"s + "1"s,
                                   "\x0b"
                                   "1"s,
                                   "\xff"
                                   "1"s,
                                   "\x07"
                                   "1\0all_reduce\0world\0"
                                   "1"s,
                                   "\x08"
                                   "1\0RANK=1"s,
                                   "\x09"
                                   "1"s}) {
    send_to_launcher(bytes);
  }
  ASSERT_TRUE(send_message(link_.worker.get(), TookRank{.generation = 3}));
  EXPECT_EQ(receive_from_worker(link_.launcher.get(), at_once())->message,
            WorkerMessage(TookRank{.generation = 3}));
  for (const auto& [message, bytes] : all_of_a_worker()) send_to_worker(bytes);
  ASSERT_TRUE(send_message(link_.launcher.get(), LeaveGroup{.generation = 3}));
  EXPECT_EQ(receive_from_launcher(link_.worker.get(), at_once())->message,
            LauncherMessage(LeaveGroup{.generation = 3}));
}

TEST_F(WorkerMessageTest, APlaceBringsADescriptor) {
  Pipe pipe = make_pipe();
  ASSERT_TRUE(send_message(link_.launcher.get(), Place{.generation = 7}, pipe.read_end.get()));
  const auto got = receive_from_launcher(link_.worker.get(), at_once());
  ASSERT_TRUE(got);
  ASSERT_EQ(::write(pipe.write_end.get(), "x", 1), 1);
  char letter = 0;
  EXPECT_EQ(::read(got->file.get(), &letter, 1), 1);
}

TEST_F(WorkerMessageTest, ComeWholeAndInOrder) {
  ASSERT_TRUE(send_message(link_.worker.get(), KeepsState{}));
  ASSERT_TRUE(send_message(link_.worker.get(), CannotRecover{}));
  EXPECT_EQ(receive_from_worker(link_.launcher.get(), at_once())->message,
            WorkerMessage(KeepsState{}));
  EXPECT_EQ(receive_from_worker(link_.launcher.get(), at_once())->message,
            WorkerMessage(CannotRecover{}));
  EXPECT_FALSE(receive_from_worker(link_.launcher.get(), at_once()));
}

TEST_F(WorkerMessageTest, TheLastOnesArriveFromAWorkerThatLeftSomeUnread) {
  WorkerLink link = make_worker_link();
  ASSERT_TRUE(send_message(link.launcher.get(), LeaveGroup{.generation = 3}));
  ASSERT_TRUE(send_message(link.worker.get(), CannotRecover{}));
  link.worker.reset();
  const auto got = receive_from_worker(link.launcher.get(), at_once());
  ASSERT_TRUE(got);
  EXPECT_EQ(got->message, WorkerMessage(CannotRecover{}));
  EXPECT_THROW(receive_from_worker(link.launcher.get(), at_once()), PeerLost);
}

}  // namespace
}  // namespace lockstep
