// Trains with DistributedDataParallel and an ordinary loop until one rank hangs
// (tests/python/faults/hangs.py).
//   hang_worker circles|deadlock|stop|kill|pair|bucket|group RANK
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#include <ATen/ATen.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/program/run_main.h"

namespace {

constexpr int kSteps = 20;

[[gnu::noinline]] void turn_in_circles() {
  for (volatile int turns = 0;;) turns = turns + 1;
}

[[gnu::noinline]] void lock_two(std::timed_mutex& first, std::timed_mutex& second) {
  first.lock();
  second.lock();
}

// Two threads, each of which waits for what the other holds.
[[gnu::noinline]] void wait_for_each_other() {
  std::timed_mutex left;
  std::timed_mutex right;
  right.lock();
  std::thread other([&] { lock_two(left, right); });
  while (left.try_lock()) left.unlock();
  left.lock();
  std::abort();
}

[[gnu::noinline]] void hang(const std::string& how, const lockstep::ProcessGroup& pair) {
  if (how == "circles") turn_in_circles();
  if (how == "deadlock") wait_for_each_other();
  if (how == "stop") std::raise(SIGSTOP);
  if (how == "kill") std::raise(SIGKILL);
  at::Tensor tensor = at::ones({2});
  if (how == "pair") pair.all_reduce(tensor);  // Which the other one does not.
}

int run(const std::string& how, int late_rank) {
  const lockstep::ProcessGroup group = lockstep::init_process_group();
  const lockstep::ProcessGroup pair = group.new_group({0, 1});
  torch::nn::Sequential net(torch::nn::Linear(512, 512), torch::nn::Linear(512, 512),
                            torch::nn::Linear(512, 8));
  lockstep::DistributedDataParallel model(net, {.process_group = group, .bucket_cap_mb = 1});
  torch::optim::SGD optimizer(net->parameters(), 1e-3);
  bool hangs = false;
  if (how == "bucket") {
    // Gradients come from the last layer to the first.
    net->parameters().front().register_hook([&](const at::Tensor&) {
      if (hangs) turn_in_circles();
    });
  }
  for (int step = 0; step < kSteps; ++step) {
    hangs = step == kSteps / 2 && group.rank() == late_rank;
    if (hangs) hang(how, pair);
    at::Tensor tensor = at::ones({2});
    if (how == "group" && group.rank() < 2) {
      if (hangs) turn_in_circles();
      pair.all_reduce(tensor);
    }
    optimizer.zero_grad();
    model->forward(at::ones({4, 512})).sum().backward();
    optimizer.step();
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    if (argc != 3)
      throw lockstep::UsageError("hang_worker circles|deadlock|stop|kill|pair|bucket|group RANK");
    return run(argv[1], std::stoi(argv[2]));
  });
}
