// Calls lockstep::spawn() in the way that its first argument names; tests/python/spawn.py looks.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/run_main.h"
#include "lockstep/launch/spawn.h"

namespace {

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void tell(int rank) {
  say("rank " + std::to_string(rank) + " of " + variable("WORLD_SIZE") + ", local rank " +
      variable("LOCAL_RANK") + ", pid " + std::to_string(::getpid()));
}

[[noreturn]] void wait_for_a_signal(int rank) {
  tell(rank);
  for (;;) ::pause();
}

// In rank 1; the others wait.
std::function<void(int)> in_rank_one(const std::function<void()>& action) {
  return [action](int rank) {
    if (rank != 1) wait_for_a_signal(rank);
    action();
  };
}

const std::map<std::string, std::function<void()>> kWays = {
    {"ranks", [] { lockstep::spawn(tell, 3); }},
    {"one", [] { lockstep::spawn(tell, 1); }},
    {"none", [] { lockstep::spawn(tell, 0); }},
    {"exception",
     [] { lockstep::spawn(in_rank_one([] { throw std::runtime_error("out of luck"); }), 3); }},
    {"error",
     [] { lockstep::spawn(in_rank_one([] { throw lockstep::UsageError("a wrong size"); }), 3); }},
    {"signal", [] { lockstep::spawn(in_rank_one([] { std::raise(SIGKILL); }), 3); }},
    {"exit", [] { lockstep::spawn(in_rank_one([] { std::exit(7); }), 3); }},
    {"stubborn",
     [] {
       lockstep::spawn(
           [](int rank) {
             if (rank == 1) throw std::runtime_error("out of luck");
             std::signal(SIGTERM, SIG_IGN);
             wait_for_a_signal(rank);
           },
           2);
     }},
    {"wait", [] { lockstep::spawn(wait_for_a_signal, 2); }},
    {"within", [] { lockstep::spawn([](int) { lockstep::spawn(tell, 1); }, 1); }},
    {"caught",
     [] {
       try {
         lockstep::spawn(in_rank_one([] { throw std::runtime_error("out of luck"); }), 2);
       } catch (const lockstep::ProcessFailed& failure) {
         say("rank " + std::to_string(failure.rank()) + " with " +
             std::to_string(failure.exit_code()));
       }
     }},
    {"twice",
     [] {
       lockstep::spawn([](int rank) { say("first " + std::to_string(rank)); }, 2);
       lockstep::spawn([](int rank) { say("second " + std::to_string(rank)); }, 2);
     }},
    {"beside_threads",
     [] {
       std::jthread busy([](const std::stop_token& stop) {
         while (!stop.stop_requested()) std::free(std::malloc(100));
       });
       lockstep::spawn(tell, 2);
     }},
};

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    kWays.at(argc > 1 ? argv[1] : "")();
    say("all have ended");
    return 0;
  });
}
