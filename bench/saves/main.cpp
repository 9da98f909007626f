// What an asynchronous save costs the training: one of the programs that bench/saves/run.py times.
//
//   lockstep run --standalone --nproc-per-node=2 save_stalls one-copy|replicas FOLDER SAVES WIDTH
//
// Trains linear layers of WIDTH x WIDTH with AdamW. Prints, as JSON, for each save: the ms of
// save() ("stall"), of the two steps before it and the two after it ("before", "after"), on the
// slowest rank, until the snapshot is on disk ("write"), and of the processor in save()
// ("stall_cpu"). The first save allocates memory.
#include <array>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/randn.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/os/machine/affinity.h"
#include "lockstep/program/run_main.h"
#include "lockstep/snapshot/snapshot_directory.h"

namespace lockstep::bench::save_stalls {
namespace {

namespace nn = torch::nn;
using Clock = std::chrono::steady_clock;

constexpr int kLayers = 6;
constexpr std::int64_t kBatch = 4;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

nn::Sequential make_net(std::int64_t width) {
  nn::Sequential net;
  for (int i = 0; i < kLayers; ++i)
    net->push_back(nn::Linear(nn::LinearOptions(width, width).bias(false)));
  return net;
}

/// Of this thread on its processor: without what other programs take.
double processor_milliseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

class Training {
 public:
  Training(bool one_copy, std::int64_t width)
      : model_(make_net(width).ptr(), {.one_copy_per_machine = one_copy}),
        optimizer_(model_.parameters(), {.lr = 1e-4}),
        inputs_(at::randn({kBatch, width})) {}

  double step() {
    const auto begin = Clock::now();
    optimizer_.zero_grad();
    model_(inputs_).square().mean().backward();
    optimizer_.step();
    return milliseconds_since(begin);
  }
  double save(SnapshotDirectory& snapshots, int step) {
    const auto begin = Clock::now();
    snapshots.save(*model_.module(), optimizer_, {.step = step});
    return milliseconds_since(begin);
  }

 private:
  DistributedDataParallel<nn::SequentialImpl> model_;
  AdamW optimizer_;
  at::Tensor inputs_;
};

int measure(const std::string& way, const std::string& folder, int saves, std::int64_t width) {
  const ProcessGroup group = init_process_group();
  const std::vector<int> cpus = allowed_cpus();
  const auto rank = static_cast<std::size_t>(group.rank());
  if (static_cast<std::size_t>(group.world_size()) <= cpus.size()) pin_to_cpu(cpus[rank]);
  at::set_num_threads(1);
  Training training(way == "one-copy", width);
  SnapshotDirectory snapshots(folder, {.asynchronous_saves = true});
  for (int i = 0; i < 3; ++i) training.step();
  nlohmann::json rows = nlohmann::json::array();
  for (int i = 0; i < saves; ++i) {
    group.barrier();
    std::array<double, 7> ms{};
    ms[0] = training.step();
    ms[1] = training.step();
    group.barrier();
    const auto begin = Clock::now();
    ms[6] = -processor_milliseconds();
    ms[2] = training.save(snapshots, i);
    ms[6] += processor_milliseconds();
    ms[3] = training.step();
    ms[4] = training.step();
    snapshots.wait();
    ms[5] = milliseconds_since(begin);
    group.all_reduce(at::from_blob(ms.data(), {static_cast<std::int64_t>(ms.size())}, at::kDouble),
                     {.op = ReduceOp::kMax});
    rows.push_back({{"before", {ms[0], ms[1]}},
                    {"stall", ms[2]},
                    {"stall_cpu", ms[6]},
                    {"after", {ms[3], ms[4]}},
                    {"write", ms[5]}});
  }
  if (group.rank() == 0) std::printf("%s\n", rows.dump().c_str());
  destroy_process_group();
  return 0;
}

}  // namespace

int run_program(int argc, char** argv) {
  return run_main([&] {
    const auto saves = argc == 5 ? parse_number<int>(argv[3]) : std::nullopt;
    const auto width = argc == 5 ? parse_number<std::int64_t>(argv[4]) : std::nullopt;
    if (!saves || !width) {
      throw UsageError("usage: save_stalls one-copy|replicas FOLDER SAVES WIDTH");
    }
    return measure(argv[1], argv[2], *saves, *width);
  });
}

}  // namespace lockstep::bench::save_stalls
