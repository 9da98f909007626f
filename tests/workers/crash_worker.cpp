// A worker for the tests of crashes (tests/system/crash_test.cpp): crashes in the way that its
// argument names, in functions whose names the report must tell.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "diagnose/capture/recent_calls.h"
#include "lockstep/base/error.h"
#include "lockstep/program/run_main.h"

// Not in an anonymous namespace: named in the report as a user's function is.
namespace training {

// Optimizers must neither see through these nor turn the calls below into jumps.
volatile int zero = 0;
volatile int sink = 0;
int* volatile nowhere = nullptr;
void (*volatile no_function)() = nullptr;

[[gnu::noinline]] void write_to(int* address) {
  *address = 1;  // the line that faults
  sink = sink + 1;
}

[[gnu::noinline]] void divide() {
  sink = 7 / zero;  // 1 / zero would be no division
  sink = sink + 1;
}

[[gnu::noinline]] void run_illegal_instruction() {
  __builtin_trap();
}

[[gnu::noinline]] void call_nothing() {
  no_function();
  sink = sink + 1;
}

[[gnu::noinline]] void give_up() {
  std::abort();
}

[[gnu::noinline]] void read_past_the_end_of_a_file() {
  const int fd = ::memfd_create("short", MFD_CLOEXEC);
  void* const page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  write_to(static_cast<int*>(page));
  sink = sink + 1;
}

[[gnu::noinline]] int recurse(int depth) {
  volatile char room[1024];
  room[0] = static_cast<char>(depth);
  return depth < sink + 100'000'000 ? recurse(depth + 1) + room[0] : 0;
}

[[gnu::noinline]] void load_sample() {
  throw std::out_of_range("no sample \"7\"\nsecond line");
}

// malloc faults while it holds its lock, which it takes where there are several threads.
[[gnu::noinline]] void break_the_heap() {
  std::thread([] { ::pause(); }).detach();
  auto* volatile block = static_cast<void* volatile*>(std::malloc(3000));
  void* volatile between = std::malloc(16);
  std::free(const_cast<void**>(block));
  block[0] = nullptr;  // where the freed block has its neighbours in the list
  block[1] = nullptr;
  sink = std::malloc(5000) != between;
}

[[gnu::noinline]] void free_twice() {
  void* volatile block = std::malloc(16);
  std::free(block);
  std::free(block);
  sink = sink + 1;
}

void crash_in(const std::string& way) {
  if (way == "segv") write_to(nowhere);
  if (way == "bus") read_past_the_end_of_a_file();
  if (way == "fpe") divide();
  if (way == "ill") run_illegal_instruction();
  if (way == "jump") call_nothing();
  if (way == "abort") give_up();
  if (way == "overflow") recurse(0);
  if (way == "heap") break_the_heap();
  if (way == "double_free") free_twice();
  if (way == "thread") std::thread([] { write_to(nowhere); }).join();
  if (way == "thread_exception") std::thread(load_sample).join();
  if (way == "peer_lost") std::thread([] { throw lockstep::PeerLost("rank 0 is gone"); }).join();
  if (way == "not_joined") std::thread([] { ::pause(); });  // destroyed while it runs
  if (way == "own_error") throw lockstep::UsageError("no such flag");
  if (way == "raise") std::raise(SIGSEGV);
  if (way == "fork") {
    if (::fork() == 0) write_to(nowhere);
    ::wait(nullptr);
    std::_Exit(3);
  }
}

struct CrashesAtTheEnd {
  ~CrashesAtTheEnd() { write_to(nowhere); }
};

}  // namespace training

namespace {

extern "C" void own_handler(int) {
  [[maybe_unused]] const auto written = ::write(STDOUT_FILENO, "own handler\n", 12);
  ::_exit(7);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "";
  // What the test of a crash of one rank leaves to the others.
  if (argc > 2 && std::strcmp(argv[2], std::getenv("RANK")) != 0) {
    for (;;) ::pause();
  }
  if (way == "own_handler") {
    ::signal(SIGSEGV, own_handler);
    return lockstep::run_main([]() -> int {
      training::write_to(training::nowhere);
      return 0;
    });
  }
  const int status = lockstep::run_main([&] {
    lockstep::recent_calls().end(lockstep::recent_calls().start("broadcast", "default", 86));
    lockstep::recent_calls().start("all_reduce", "default", 87);
    training::crash_in(way == "error_then_crash" ? "own_error" : way);
    return 0;
  });
  if (way == "error_then_crash") training::CrashesAtTheEnd();
  if (way == "outside") training::load_sample();
  return status;
}
