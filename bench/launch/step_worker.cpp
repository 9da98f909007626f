// A rank that trains a small network for ever, or for so many steps, and writes a line into a named
// pipe when it starts and after each step: "RESTARTS RANK PID STEP NS", STEP -1 at its start and NS
// of CLOCK_MONOTONIC. What bench/launch/run.py and bench/recovery/run.py time; step_worker.py is
// the same for torchrun.
//
//   step_worker PIPE [STEPS]
#include <ctime>
#include <string>

#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <fcntl.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/program/run_main.h"

namespace lockstep::bench::step_worker {
namespace {

constexpr std::int64_t kWidth = 256;
constexpr std::int64_t kHidden = 1024;
constexpr std::int64_t kBatchSize = 64;

class StepLog {
 public:
  explicit StepLog(const char* pipe)
      : pipe_(::open(pipe, O_WRONLY | O_CLOEXEC)),
        prefix_(concat(env::integer(env::kRestartCount).value_or(0), " ",
                       env::integer(env::kRank).value_or(0), " ", ::getpid(), " ")) {
    if (pipe_ < 0) throw UsageError(concat("step_worker: cannot open ", pipe));
  }

  void tell(std::int64_t step) const {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    const std::string line =
        concat(prefix_, step, " ", now.tv_sec * 1'000'000'000LL + now.tv_nsec, "\n");
    // One write of less than PIPE_BUF bytes is not mixed with those of other ranks.
    if (::write(pipe_, line.data(), line.size()) < 0) throw UsageError("step_worker: no reader");
  }

 private:
  const int pipe_;
  const std::string prefix_;
};

int train(const StepLog& log, std::int64_t steps) {
  at::set_num_threads(1);
  log.tell(-1);
  const ProcessGroup group = init_process_group();
  torch::nn::Sequential network(torch::nn::Linear(kWidth, kHidden), torch::nn::ReLU(),
                                torch::nn::Linear(kHidden, kWidth));
  DistributedDataParallel model(network, {.process_group = group});
  torch::optim::SGD optimizer(network->parameters(), 1e-3);
  const at::Tensor inputs = at::randn({kBatchSize, kWidth});
  const at::Tensor targets = at::randn({kBatchSize, kWidth});
  for (std::int64_t step = 0; step != steps; ++step) {
    optimizer.zero_grad();
    torch::nn::functional::mse_loss(model(inputs), targets).backward();
    optimizer.step();
    log.tell(step);
  }
  return 0;
}

}  // namespace

int run_program(int argc, char** argv) {
  return run_main([&] {
    if (argc < 2) throw UsageError("step_worker: run it by bench/recovery/run.py");
    return train(StepLog(argv[1]), argc > 2 ? std::stoll(argv[2]) : -1);
  });
}

}  // namespace lockstep::bench::step_worker
