#include <cstring>
#include <new>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/os/machine/machine.h"
#include "lockstep/os/memory/futex.h"
#include "lockstep/os/memory/life_mark.h"
#include "lockstep/os/memory/memory_file.h"
#include "lockstep/os/socket/unix_socket.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kBytes = 1 << 20;

Deadline soon() {
  return Deadline::after(std::chrono::seconds(20));
}

// Runs a body in another process, which it never leaves.
template <class Body>
pid_t in_another_process(Body&& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  body();
  ::_exit(0);
}

TEST(SharedMemory, IsSeenByWhoeverMapsTheFile) {
  const UniqueFd file = make_memory_file("test", kBytes);
  const SharedMapping ours(file.get(), kBytes);
  const pid_t child = in_another_process([&] {
    const SharedMapping theirs(file.get(), kBytes);
    theirs.populate(5000, 1);
    theirs.data()[5000] = std::byte{42};
  });
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(ours.data()[5000], std::byte{42});
}

TEST(SharedMemory, MoreThanThereIsIsAnErrorAndNoSignal) {
  const std::uint64_t too_much = total_memory_bytes() * 4;
  const UniqueFd file = make_memory_file("test", too_much);
  const SharedMapping mapping(file.get(), too_much);
  try {
    mapping.populate(0, too_much);
    FAIL() << "took four times the machine's memory";
  } catch (const SystemError& error) {
    EXPECT_EQ(error.errno_value(), ENOMEM);
    EXPECT_NE(std::strstr(error.what(), concat(too_much).c_str()), nullptr) << error.what();
  }
}

TEST(LifeMark, TellsOfADeathByAnySignal) {
  const UniqueFd file = make_memory_file("test", kBytes);
  const SharedMapping mapping(file.get(), kBytes);
  auto* const mark = reinterpret_cast<LifeMark*>(mapping.data());
  auto* const ready = reinterpret_cast<std::atomic<std::uint32_t>*>(mapping.data() + 4096);
  EXPECT_FALSE(mark->is_held());
  for (const int signal : {SIGKILL, SIGSEGV, SIGTERM}) {
    ready->store(0);
    const pid_t child = in_another_process([&] {
      const SharedMapping own(file.get(), kBytes);
      reinterpret_cast<LifeMark*>(own.data())->hold();
      auto* const word = reinterpret_cast<std::atomic<std::uint32_t>*>(own.data() + 4096);
      word->store(1);
      futex_wake_all(*word);
      for (;;) ::pause();
    });
    while (ready->load() == 0) futex_wait(*ready, 0, std::chrono::seconds(1));
    EXPECT_TRUE(mark->is_held());
    ::kill(child, signal);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    for (int time = 1; time <= 4; ++time) EXPECT_FALSE(mark->is_held()) << "asked time " << time;
    LifeMark::wait_for_stopped_threads();
  }
}

TEST(LifeMark, IsLetGo) {
  LifeMark mark{};
  mark.hold();
  EXPECT_TRUE(mark.is_held());
  mark.let_go();
  EXPECT_FALSE(mark.is_held());
}

TEST(LifeMark, BelongsToTheProcessAndNotToAThread) {
  LifeMark mark{};
  std::thread([&] { mark.hold(); }).join();
  EXPECT_TRUE(mark.is_held());
  std::thread([&] { mark.let_go(); }).join();
  EXPECT_FALSE(mark.is_held());
}

// A forked process has none of its parent's threads.
TEST(LifeMark, IsHeldByAForkOfAProcessThatHoldsOthers) {
  const UniqueFd file = make_memory_file("test", kBytes);
  const SharedMapping mapping(file.get(), kBytes);
  auto* const marks = reinterpret_cast<LifeMark*>(mapping.data());
  marks[0].hold();
  const pid_t child = in_another_process([&] {
    const SharedMapping own(file.get(), kBytes);
    auto* const same = reinterpret_cast<LifeMark*>(own.data());
    same[1].hold();
    ::_exit(same[0].is_held() && same[1].is_held() ? 0 : 1);  // While it is mapped.
  });
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(marks[1].is_held());
  EXPECT_TRUE(marks[0].is_held());
  marks[0].let_go();
}

TEST(UnixSocket, PassesADescriptor) {
  const std::string name = concat("lockstep-test-", ::getpid());
  const UniqueFd listener = listen_abstract(name);
  EXPECT_THROW(listen_abstract(name), SystemError);
  const pid_t child = in_another_process([&] {
    const UniqueFd socket = connect_abstract(name);
    const UniqueFd file = make_memory_file("passed", kBytes);
    const SharedMapping mapping(file.get(), kBytes);
    std::memcpy(mapping.data(), "hello", 6);
    send_fd(socket.get(), 7, file.get());
  });
  const UniqueFd socket = accept_same_user(listener.get(), soon());
  ASSERT_TRUE(socket.valid());
  const ReceivedFd received = receive_fd(socket.get(), soon());
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(received.number, 7U);
  const SharedMapping mapping(received.fd.get(), kBytes);
  EXPECT_STREQ(reinterpret_cast<const char*>(mapping.data()), "hello");
  // The sender is gone: an error, no waiting.
  EXPECT_THROW(receive_fd(socket.get(), soon()), SystemError);
}

TEST(UnixSocket, NobodyThereIsAnError) {
  EXPECT_THROW(connect_abstract("lockstep-test-nobody"), SystemError);
  const UniqueFd listener = listen_abstract(concat("lockstep-test-idle-", ::getpid()));
  EXPECT_FALSE(
      accept_same_user(listener.get(), Deadline::after(std::chrono::milliseconds(1))).valid());
}

TEST(Machine, ReportsWhatItHas) {
  EXPECT_GE(usable_cpu_count(), 1);
  EXPECT_LE(usable_cpu_count(), allowed_cpu_count());
  EXPECT_GT(available_memory_bytes(), 0U);
  EXPECT_LE(available_memory_bytes(), total_memory_bytes());
  EXPECT_FALSE(memory_domain().empty());
}

}  // namespace
}  // namespace lockstep
