#include "lockstep/os/process/child_process.h"

#include <csignal>
#include <fstream>
#include <iterator>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>

#include "lockstep/os/files/pipe.h"
#include "lockstep/os/process/helper_process.h"

namespace lockstep {
namespace {

SpawnOptions shell(const std::string& script) {
  return {.path = "/bin/sh", .arguments = {"sh", "-c", script}, .environment = {"ANSWER=42"}};
}

ChildExit wait_for(pid_t pid) {
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT);
  // Helpers that other tests killed may be there to be reaped as well.
  for (;;) {
    const ChildExit ended = reap_any_child().value();
    if (ended.pid == pid) return ended;
  }
}

// Pids of all children, ended or not.
std::string children() {
  std::ifstream file("/proc/thread-self/children");
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string read_all(int fd) {
  std::string text;
  char buffer[256];
  for (ssize_t size = 0; (size = ::read(fd, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<std::size_t>(size));
  }
  return text;
}

TEST(ChildProcess, ReportsOnceThatAChildIsStopped) {
  const pid_t pid = spawn_process(shell("kill -STOP $$"));
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED | WNOWAIT), 0);
  const auto stopped = next_stopped_child();
  ASSERT_TRUE(stopped);
  EXPECT_EQ(stopped->pid, pid);
  EXPECT_EQ(stopped->signal, SIGSTOP);
  EXPECT_FALSE(next_stopped_child());
  ::kill(pid, SIGCONT);
  EXPECT_EQ(wait_for(pid).exit_code, 0);
  EXPECT_FALSE(next_stopped_child());
}

TEST(ChildProcess, ReportsExitCodeAndSignalApart) {
  EXPECT_EQ(wait_for(spawn_process(shell("exit $ANSWER"))).exit_code, 42);
  const ChildExit killed = wait_for(spawn_process(shell("kill -KILL $$")));
  EXPECT_EQ(killed.signal, SIGKILL);
  EXPECT_EQ(killed.exit_code, 0);
}

TEST(ChildProcess, SaysWhyAProgramDoesNotRun) {
  const auto errno_of = [](const std::string& path) {
    try {
      spawn_process({.path = path, .arguments = {path}, .environment = {}});
    } catch (const ExecError& error) {
      return error.errno_value();
    }
    return 0;
  };
  const std::string before = children();
  EXPECT_EQ(errno_of("/no/such/program"), ENOENT);
  EXPECT_EQ(errno_of("/etc/passwd"), EACCES);
  EXPECT_EQ(children(), before) << "the failed child was left behind";
}

TEST(ChildProcess, WritesWhereItIsTold) {
  Pipe out = make_pipe();
  SpawnOptions options = shell("echo out; echo err >&2");
  options.stdout_fd = options.stderr_fd = out.write_end.get();
  const pid_t pid = spawn_process(options);
  out.write_end.reset();
  EXPECT_EQ(read_all(out.read_end.get()), "out\nerr\n");
  wait_for(pid);
}

TEST(ChildProcess, InheritsOnlyTheDescriptorsNamed) {
  Pipe given = make_pipe();
  Pipe kept = make_pipe();
  SpawnOptions options =
      shell("test -e /proc/self/fd/" + std::to_string(given.write_end.get()) +
            " && ! test -e /proc/self/fd/" + std::to_string(kept.write_end.get()));
  options.inherited_fds = {given.write_end.get()};
  EXPECT_EQ(wait_for(spawn_process(options)).exit_code, 0);
}

TEST(ChildProcess, LeadsAGroupThatCanBeSignalledAsAWhole) {
  const pid_t pid = spawn_process(shell("read line < /dev/zero"));
  EXPECT_TRUE(signal_group(pid, 0));
  EXPECT_TRUE(signal_group(pid, SIGKILL));
  EXPECT_EQ(wait_for(pid).signal, SIGKILL);
  EXPECT_FALSE(signal_group(pid, 0));
}

TEST(ChildProcess, DiesWithItsParent) {
  Pipe out = make_pipe();
  HelperProcess parent("parent", [&](int) {
    SpawnOptions options = shell("echo started; exec sleep 1000");
    options.stdout_fd = out.write_end.get();
    spawn_process(options);
    ::raise(SIGKILL);
  });
  out.write_end.reset();
  // The end of file comes when the last that could write is gone.
  read_all(out.read_end.get());
}

TEST(HelperProcess, EndsWhenToldTo) {
  Pipe out = make_pipe();
  HelperProcess helper("helper", [&](int control) {
    char byte = 0;
    while (::read(control, &byte, 1) > 0) {
      if (::write(out.write_end.get(), &byte, 1) != 1) return;
    }
  });
  out.write_end.reset();
  ASSERT_EQ(::write(helper.control_fd(), "ab", 2), 2);
  EXPECT_TRUE(helper.finish(Deadline::after(std::chrono::seconds(30))));
  EXPECT_EQ(read_all(out.read_end.get()), "ab");
}

TEST(HelperProcess, IsKilledWhenItDoesNotEnd) {
  HelperProcess helper("helper", [](int) {
    for (;;) ::pause();
  });
  EXPECT_FALSE(helper.finish(Deadline::after(std::chrono::milliseconds(0))));
}

}  // namespace
}  // namespace lockstep
