#include "diagnose/verdict/python_stacks.h"

#include <csignal>

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/os/files/pipe.h"

namespace lockstep {
namespace {

constexpr const char* kText = R"(Thread 0x00007f3a2c5fe6c0 [loader] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  ...
Thread 0x00007f3a2d5fe6c0 (most recent call first):
  <no Python frame>

Current thread 0x00007f3a4b1c0740 (most recent call first):
  File "/home/me/a "b", line 2.py", line 12 in read_batch
  File "/home/me/train.py", line 30 in <module>
)";

TEST(PythonStacks, AreReadFromWhatFaulthandlerWrites) {
  const std::vector<PythonThread> threads = parse_python_stacks(kText);
  ASSERT_EQ(threads.size(), 3U);
  EXPECT_FALSE(threads[0].took_signal || threads[1].took_signal);
  EXPECT_TRUE(threads[2].took_signal);
  ASSERT_EQ(threads[0].frames.size(), 1U);
  EXPECT_TRUE(threads[1].frames.empty());
  ASSERT_EQ(threads[2].frames.size(), 2U);
  EXPECT_EQ(threads[2].frames[0].file, "/home/me/a \"b\", line 2.py");
  EXPECT_EQ(threads[2].frames[0].line, 12);
  EXPECT_EQ(threads[2].frames[0].function, "read_batch");
  EXPECT_EQ(threads[2].frames[1].function, "<module>");
}

TEST(PythonStacks, TextThatIsCutOrOfAnotherKindIsReadAsFarAsItGoes) {
  EXPECT_TRUE(parse_python_stacks("").empty());
  EXPECT_TRUE(parse_python_stacks("  File \"a.py\", line 1 in f\n").empty());
  const std::string text = kText;
  for (std::size_t bytes = 0; bytes < text.size(); ++bytes) {
    EXPECT_LE(parse_python_stacks(text.substr(0, bytes)).size(), 3U);
  }
}

int write_end_of_child = -1;

class AskedProcess : public testing::Test {
 protected:
  void start(bool handles) {
    Pipe ready = make_pipe();
    Pipe stacks = make_pipe();
    child_ = ::fork();
    if (child_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      write_end_of_child = stacks.write_end.get();
      struct sigaction action {};
      action.sa_handler = [](int) {
        static_cast<void>(::write(write_end_of_child, kText, std::string_view(kText).size() + 1));
      };
      if (handles) ::sigaction(SIGRTMAX - 1, &action, nullptr);
      static_cast<void>(::write(ready.write_end.get(), "x", 1));
      for (;;) ::pause();
    }
    char byte;
    ASSERT_EQ(::read(ready.read_end.get(), &byte, 1), 1);
    stacks_ = PythonStacks(std::move(stacks.read_end), SIGRTMAX - 1);
  }
  void TearDown() override {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }

  pid_t child_ = 0;
  PythonStacks stacks_;
};

TEST_F(AskedProcess, WritesThemAsOftenAsItIsAsked) {
  start(true);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(stacks_.ask(child_));
    EXPECT_EQ(stacks_.read(Deadline::after(std::chrono::seconds(10))).size(), 3U);
  }
}

TEST_F(AskedProcess, IsNotKilledWhereItNoLongerHandlesTheSignal) {
  start(false);
  EXPECT_FALSE(stacks_.ask(child_));
  EXPECT_EQ(::waitpid(child_, nullptr, WNOHANG), 0);
}

TEST_F(AskedProcess, IsNotAskedWhileItIsStopped) {
  start(true);
  ::kill(child_, SIGSTOP);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child_), &info, WSTOPPED | WNOWAIT), 0);
  EXPECT_FALSE(stacks_.ask(child_));
}

TEST(PythonStacks, AProgramWithoutPythonHasNone) {
  EXPECT_FALSE(PythonStacks().ask(::getpid()));
}

}  // namespace
}  // namespace lockstep
