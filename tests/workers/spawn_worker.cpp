// Calls lockstep::spawn() in the way that its first argument names; tests/python/launcher/spawn.py looks.
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/deadline.h"
#include "lockstep/os/files/unique_fd.h"
#include "lockstep/os/socket/tcp_socket.h"
#include "lockstep/program/run_main.h"
#include "lockstep/spawn/spawn.h"

namespace {

constexpr std::chrono::seconds kSoon{30};

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

// As rank 0's store does, and then ends.
void serve_one_connection() {
  const int listener = std::stoi(variable("LOCKSTEP_STORE_LISTEN_FD"));
  ::listen(listener, SOMAXCONN);
  ::accept(listener, nullptr, nullptr);
}

void connect_until_refused() {
  const auto port = static_cast<std::uint16_t>(std::stoi(variable("MASTER_PORT")));
  lockstep::wait_for_listener(variable("MASTER_ADDR"), port, lockstep::Deadline::after(kSoon));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  ::inet_pton(AF_INET, variable("MASTER_ADDR").c_str(), &address.sin_addr);
  int error = 0;
  // Reset: the listener was closed while the connection was being made.
  while (error == 0 || error == ECONNRESET) {
    const lockstep::UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    error = ::connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0
                ? 0
                : errno;
  }
  say(error == ECONNREFUSED ? "refused" : std::strerror(error));
}

void tell_and_end(int) {
  constexpr std::string_view kTold = "told to end\n";
  const auto written = ::write(STDOUT_FILENO, kTold.data(), kTold.size());
  ::_exit(written < 0);
}

// Rank 1 fails when the others, of which one has stopped, are ready to be told.
void fail_beside_others(int rank) {
  const std::string folder = variable("FIFO_FOLDER");
  if (rank == 1) {
    for (const char* fifo : {"/0", "/2"}) const std::ifstream ready(folder + fifo);
    throw std::runtime_error("out of luck");
  }
  std::signal(SIGTERM, tell_and_end);
  const std::ofstream ready(folder + "/" + std::to_string(rank));
  if (rank == 2) std::raise(SIGSTOP);
  wait_for_a_signal(rank);
}

void handle_signals(int rank) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, tell_and_end);
  wait_for_a_signal(rank);
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
    {"result",
     [] {
       const auto ranks_text = [](int rank) {
         return std::string(100'000, 'a') + '\0' + std::to_string(rank);
       };
       const std::string result = lockstep::spawn_for_result(ranks_text, 3);
       const auto later_text = [&](int rank) {
         return std::to_string(result.size()) + " bytes end with " + result.substr(100'001) +
                " in rank " + std::to_string(rank);
       };
       std::cout << lockstep::spawn_for_result(later_text, 2) << std::endl;
     }},
    {"none", [] { lockstep::spawn(tell, 0); }},
    {"exception",
     [] { lockstep::spawn(in_rank_one([] { throw std::runtime_error("out of luck"); }), 3); }},
    {"error",
     [] { lockstep::spawn(in_rank_one([] { throw lockstep::UsageError("a wrong size"); }), 3); }},
    {"signal", [] { lockstep::spawn(in_rank_one([] { std::raise(SIGKILL); }), 3); }},
    {"crash", [] { lockstep::spawn(in_rank_one([] { std::abort(); }), 3); }},
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
    {"handle", [] { lockstep::spawn(handle_signals, 2); }},
    {"handle_beside_threads",
     [] {
       // The first thread gets no signal of the process: another has to.
       std::jthread idle([](const std::stop_token& stop) {
         while (!stop.stop_requested()) ::pause();
       });
       sigset_t all;
       ::sigfillset(&all);
       ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
       lockstep::spawn(handle_signals, 2);
     }},
    {"own_handler",
     [] {
       std::signal(SIGTERM, tell_and_end);
       lockstep::spawn(wait_for_a_signal, 1);
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
    {"told", [] { lockstep::spawn(fail_beside_others, 3); }},
    {"nested_program",
     [] {
       lockstep::spawn(
           [](int) {
             const auto program = std::filesystem::read_symlink("/proc/self/exe").string();
             if (std::system((program + " one").c_str()) != 0) std::exit(1);
           },
           1);
     }},
    {"store_gone",
     [] {
       lockstep::spawn(
           [](int rank) { rank == 0 ? serve_one_connection() : connect_until_refused(); }, 2);
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
