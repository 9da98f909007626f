// A rank for the fault tests of the shared-memory backend (tests/python/faults/shm_faults.py) and for
// bench/peer_death.py: says "running" on stdout once all ranks have done ACTION once, and goes on
// until an error ends it; then says which, and when on the monotonic clock.
//   shm_worker ACTION [BYTES]    BYTES: memory that rank 1 holds
#include <chrono>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ops/ones.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/program/run_main.h"

namespace {

using lockstep::ProcessGroup;
using lockstep::ReduceOp;
using Collective = std::function<void()>;

constexpr std::int64_t kSmall = 16;
constexpr std::int64_t kLarge = 1 << 24;  // of 4 bytes
constexpr int kVictim = 1;

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

Collective all_reduce(const ProcessGroup& group, const at::Tensor& tensor) {
  return [=] { group.all_reduce(tensor, {.op = ReduceOp::kMax}); };
}

Collective messages(const ProcessGroup& group) {
  const at::Tensor tensor = at::ones({1 << 18});
  if (group.rank() != kVictim) return [=] { group.recv(tensor, kVictim); };
  return [=] {
    for (int peer = 0; peer < group.world_size(); ++peer) {
      if (peer != kVictim) group.send(tensor, peer);
    }
  };
}

Collective all_to_all(const ProcessGroup& group) {
  const at::Tensor input = at::ones({group.world_size(), 1 << 20});
  const at::Tensor output = at::ones_like(input);
  return [=] { group.all_to_all_single(output, input); };
}

Collective collective(const std::string& action, const ProcessGroup& group) {
  if (action == "private") return all_reduce(group, at::ones({kLarge}));
  if (action == "shared") return all_reduce(group, group.allocate_tensor(kLarge, at::kFloat));
  if (action == "barrier") return [=] { group.barrier(); };
  if (action == "recv") return messages(group);
  if (action == "all_to_all") return all_to_all(group);
  if (action == "broadcast") {
    return [group, tensor = at::ones({kLarge})] { group.broadcast(tensor, 0); };
  }
  return all_reduce(group, at::ones({kSmall}));
}

// Ranks 0 and 1 wait for each other in calls that never meet.
void abort_while_waiting(const ProcessGroup& group) {
  if (group.rank() == kVictim) group.recv(at::ones({kSmall}), 0);
  if (group.rank() != 0) group.all_reduce(at::ones({kSmall}));
  std::thread aborter([backend = group.c10d_backend()] {
    std::getchar();  // The test lets go when all ranks run.
    backend->abort();
  });
  try {
    group.all_reduce(at::ones({kSmall}));
  } catch (...) {
    aborter.join();
    throw;
  }
}

// Rank 1 takes shared memory until there is none.
void fill(const ProcessGroup& group) {
  constexpr std::int64_t kTensors = 1 << 20;
  std::vector<at::Tensor> tensors;
  if (group.rank() != kVictim) group.barrier();
  while (tensors.size() < kTensors) tensors.push_back(group.allocate_tensor(kLarge, at::kFloat));
}

int exchange(const std::string& action, const ProcessGroup& group, const Collective& act) {
  act();
  group.barrier();
  say("running");
  if (action == "once") {
    lockstep::destroy_process_group();
    return 0;
  }
  if (action == "fill") fill(group);
  if (action == "abort") abort_while_waiting(group);
  if (group.rank() == kVictim) {
    if (action == "return" || action == "exit" || action == "throw") std::getchar();
    if (action == "return") return 0;
    if (action == "exit") ::_exit(0);
    if (action == "throw") throw std::runtime_error("something of the program's own");
  }
  for (;;) act();
}

std::int64_t monotonic_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// Says what the body ends with, and when.
template <class Body>
auto telling_errors(Body&& body) {
  try {
    return body();
  } catch (const lockstep::Error& error) {
    say(lockstep::concat(error.name(), " ", monotonic_ns()));
    throw;
  }
}

int run(const std::string& action, std::size_t held_bytes) {
  const ProcessGroup group = telling_errors([] { return lockstep::init_process_group(); });
  std::vector<char> held;
  if (group.rank() == kVictim) held.resize(held_bytes, 1);
  const Collective act = collective(action, group);
  // Apart from the first: to free tensors and group takes longer than to hear of a death.
  return telling_errors([&] { return exchange(action, group, act); });
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main(
      [&] { return run(argc > 1 ? argv[1] : "small", argc > 2 ? std::stoull(argv[2]) : 0); });
}
