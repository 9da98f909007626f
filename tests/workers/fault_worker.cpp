// A rank for the fault tests (tests/python/faults/comm_faults.py): joins as its environment and
// arguments say, tells on stdout how far it is, and goes on until something ends it.
//   fault_worker
//   join|reinit|collectives|polled_collectives|polled_messages|train|shards|large_shards
//     |shards_without_memory|late_broadcast|pending|crash
//     |large_sums|large_broadcasts_from_0|large_broadcasts_from_1|large_messages [init_method rank
//     world_size [store]]
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <sys/resource.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/data/internal/shard_plan.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/exchange/shard_sum.h"
#include "lockstep/program/run_main.h"

namespace {

void say(const char* word) {
  std::printf("%s\n", word);
  std::fflush(stdout);
}

lockstep::ProcessGroup join(const std::vector<std::string>& arguments) {
  if (arguments.size() < 4) return lockstep::init_process_group();
  lockstep::InitOptions options{.rank = std::stoi(arguments[2]),
                                .world_size = std::stoi(arguments[3])};
  if (arguments.size() > 4) {
    return lockstep::init_process_group(
        c10::make_intrusive<c10d::FileStore>(arguments[1], *options.world_size), options);
  }
  options.init_method = arguments[1];
  return lockstep::init_process_group(options);
}

[[noreturn]] void exchange_for_ever(const lockstep::ProcessGroup& group) {
  at::Tensor tensor = at::ones({1 << 16});
  for (bool first = true;; first = false) {
    group.all_reduce(tensor, {.op = lockstep::ReduceOp::kMax});
    if (first) say("running");
  }
}

// Messages longer than what the kernel's buffers hold: when this rank has said that it runs, a part
// of one is on its way.
at::Tensor large_tensor() {
  return at::ones({64 << 20});
}

template <class Start>
[[noreturn]] void exchange_large_for_ever(const Start& start) {
  start().wait();
  for (bool first = true;; first = false) {
    const lockstep::Work work = start();
    if (first) say("running");
    work.wait();
  }
}

[[noreturn]] void sum_large_for_ever(const lockstep::ProcessGroup& group) {
  exchange_large_for_ever([&, tensor = large_tensor()] {
    return group.all_reduce(tensor, {.op = lockstep::ReduceOp::kMax, .async_op = true});
  });
}

[[noreturn]] void broadcast_large_for_ever(const lockstep::ProcessGroup& group, int source) {
  exchange_large_for_ever(
      [&, tensor = large_tensor()] { return group.broadcast(tensor, source, {.async_op = true}); });
}

[[noreturn]] void send_large_for_ever(const lockstep::ProcessGroup& group) {
  exchange_large_for_ever([&, tensor = large_tensor()] {
    return group.rank() == 0 ? group.send(tensor, 1, 0, {.async_op = true})
                             : group.recv(tensor, 0, 0, {.async_op = true});
  });
}

// As programs do that compute while they are not complete: is_completed() alone has to end it.
void poll(const lockstep::Work& work) {
  while (!work.is_completed()) std::this_thread::yield();
  work.wait();
}

[[noreturn]] void poll_collectives_for_ever(const lockstep::ProcessGroup& group) {
  at::Tensor tensor = at::ones({1 << 16});
  for (bool first = true;; first = false) {
    poll(group.all_reduce(tensor, {.op = lockstep::ReduceOp::kMax, .async_op = true}));
    if (first) say("running");
  }
}

[[noreturn]] void poll_messages_for_ever(const lockstep::ProcessGroup& group) {
  const int ranks = group.world_size();
  const at::Tensor sent = at::ones({1 << 16});
  at::Tensor received = at::empty_like(sent);
  for (bool first = true;; first = false) {
    const lockstep::CollectiveOptions options{.async_op = true};
    const auto send = group.send(sent, (group.rank() + 1) % ranks, 0, options);
    poll(group.recv(received, (group.rank() + ranks - 1) % ranks, 0, options));
    poll(send);
    if (first) say("running");
  }
}

[[noreturn]] void train_for_ever(const lockstep::ProcessGroup& group) {
  lockstep::DistributedDataParallel model(torch::nn::Linear(64, 64), {.process_group = group});
  torch::optim::SGD optimizer(model.parameters(), 1e-3);
  for (bool first = true;; first = false) {
    optimizer.zero_grad();
    model(at::ones({8, 64})).sum().backward();
    optimizer.step();
    if (first) say("running");
  }
}

void sum_over_shards(lockstep::ShardSum& sum, const lockstep::ProcessGroup& group) {
  const auto own = lockstep::shards_of_rank(group.world_size(), group.world_size(), group.rank());
  sum.next_value().front().fill_(1);
  sum.push(own.begin);
  sum.finish();
}

// With an error it stays: the others must learn of it before it ends.
[[noreturn]] void sum_over_shards_for_ever(const lockstep::ProcessGroup& group) {
  try {
    lockstep::ShardSum sum(group, group.world_size(), {{at::kFloat, 1 << 16}});
    for (bool first = true;; first = false) {
      sum_over_shards(sum, group);
      if (first) say("running");
    }
  } catch (const lockstep::Error&) {
    say("failed");
    std::getchar();
    throw;
  }
}

// In many messages between machines.
int sum_large_values(const lockstep::ProcessGroup& group) {
  lockstep::ShardSum sum(group, group.world_size(), {{at::kFloat, 10 << 20}});
  say("running");
  sum_over_shards(sum, group);
  return 0;
}

// Rank 2, the first of its machine, cannot make a file in memory.
[[noreturn]] void sum_without_memory(const lockstep::ProcessGroup& group) {
  group.barrier();
  if (group.rank() == 2) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit none{.rlim_cur = 4096, .rlim_max = 4096};
    setrlimit(RLIMIT_FSIZE, &none);
  }
  sum_over_shards_for_ever(group);
}

// A broadcast that the source begins only when it is told.
int broadcast_late(const lockstep::ProcessGroup& group) {
  group.barrier();
  say("running");
  if (group.rank() == 0) std::getchar();
  group.broadcast(at::ones({1 << 16}), 0);
  return 0;
}

// Ends with collectives under way that a stopped peer will never join.
int leave_work_pending(const lockstep::ProcessGroup& group) {
  group.barrier();
  say("running");
  std::getchar();  // The test stops the peer, then lets us go on.
  at::Tensor tensor = at::ones({1 << 20});
  for (int i = 0; i < 8; ++i) group.all_reduce(tensor, {.async_op = true});
  lockstep::destroy_process_group();
  return 0;
}

// Rank 1 crashes between the start of a collective and its end.
int crash_in_collective(const lockstep::ProcessGroup& group) {
  group.barrier();
  at::Tensor tensor = at::ones({1 << 10});
  const lockstep::Work work = group.all_reduce(tensor, {.async_op = true});
  if (group.rank() == 1) std::raise(SIGSEGV);
  work.wait();
  group.barrier();
  return 0;
}

int run(const std::vector<std::string>& arguments) {
  const std::string mode = arguments.empty() ? "" : arguments[0];
  lockstep::ProcessGroup group = join(arguments);
  if (mode == "collectives") exchange_for_ever(group);
  if (mode == "polled_collectives") poll_collectives_for_ever(group);
  if (mode == "polled_messages") poll_messages_for_ever(group);
  if (mode == "large_sums") sum_large_for_ever(group);
  if (mode == "large_broadcasts_from_0") broadcast_large_for_ever(group, 0);
  if (mode == "large_broadcasts_from_1") broadcast_large_for_ever(group, 1);
  if (mode == "large_messages") send_large_for_ever(group);
  if (mode == "train") train_for_ever(group);
  if (mode == "shards") sum_over_shards_for_ever(group);
  if (mode == "large_shards") return sum_large_values(group);
  if (mode == "shards_without_memory") sum_without_memory(group);
  if (mode == "late_broadcast") return broadcast_late(group);
  if (mode == "crash") return crash_in_collective(group);
  if (mode == "pending") return leave_work_pending(std::move(group));
  group.barrier();
  if (mode == "reinit") {
    group = {};
    lockstep::destroy_process_group();
    group = join(arguments);
    group.barrier();
  }
  say("joined");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run({argv + 1, argv + argc}); });
}
