#include "examples/cifar/cifar.h"

#include <cstdio>

#include <CLI/CLI.hpp>

#include "examples/command_line.h"

namespace cifar {

namespace {

constexpr std::int64_t kMostNodes = 100'000;

void add_processes(CLI::App& app, Arguments& arguments) {
  app.add_option("--ip", arguments.ip, "address of the machine with rank 0");
  app.add_option("--port", arguments.port, "port on that machine")
      ->check(integer_between(1, 65'535));
  app.add_option("--nnodes", arguments.nnodes, "machines")->check(integer_between(1, kMostNodes));
  app.add_option("--node_rank,--node-rank", arguments.node_rank, "rank of this machine, from 0")
      ->check(integer_between(0, kMostNodes));
  app.add_option("--grad_accu_steps,--grad-accu-steps", arguments.grad_accu_steps,
                 "micro-batches per step of each process")
      ->check(integer_between(1, kMostOfAnything));
  app.add_flag("--no_sync_bn,--no-sync-bn", arguments.no_sync_bn,
               "BatchNorm in place of SyncBatchNorm");
}

void check_processes(const CLI::App& app, const Program& program, const Arguments& arguments) {
  if (arguments.node_rank >= arguments.nnodes) {
    throw lockstep::UsageError("--node_rank " + std::to_string(arguments.node_rank) +
                               " of --nnodes " + std::to_string(arguments.nnodes) +
                               "; machines are numbered from 0");
  }
  if (program.processes == Program::Processes::kItsOwn) refuse_launcher("distributed");
  if (!is_launched()) return;
  for (const char* option : {"--ip", "--port", "--nnodes", "--node_rank", "--nproc_per_node"}) {
    if (app.count(option) == 0) continue;
    throw lockstep::UsageError(std::string(option) +
                               " is for processes that this program starts itself, and a launcher "
                               "has started it: give it to the launcher");
  }
}

}  // namespace

bool parse(const Program& program, int argc, char** argv, Arguments& arguments) {
  const bool in_one = program.processes == Program::Processes::kOne;
  arguments.nproc_per_node = default_replicas();
  arguments.grad_accu_steps = program.grad_accu_steps;
  CLI::App app(program.description);
  app.option_defaults()->always_capture_default();
  if (!in_one) add_processes(app, arguments);
  app.add_option("--nproc_per_node,--nproc-per-node", arguments.nproc_per_node,
                 in_one ? "replicas of the model" : "processes per machine, without a launcher")
      ->check(integer_between(1, kMostProcesses));
  app.add_option("--batch_size,--batch-size", arguments.batch_size,
                 in_one ? "images a step" : "images a step, of all processes together")
      ->check(integer_between(1, kMostOfAnything));
  app.add_option("--epochs", arguments.epochs, "epochs")
      ->check(integer_between(1, kMostOfAnything));
  app.add_option("--lr", arguments.lr, "learning rate of SGD with momentum 0.9")
      ->check(require_positive);
  auto* data = app.add_option("--data", arguments.data,
                              "a folder of CIFAR-100's binary format, as examples/data/get.py "
                              "cifar100 (or photos32) makes");
  app.add_option("--synthetic", arguments.synthetic,
                 "number of generated images, instead of --data")
      ->check(integer_between(1, kMostOfAnything))
      ->excludes(data);
  if (program.has_amp_dtype) {
    app.add_option("--amp_dtype,--amp-dtype", arguments.amp_dtype,
                   "bf16, or fp16 with a scaled loss")
        ->check(CLI::IsMember({"bf16", "fp16"}));
  }
  if (!parse_command_line(app, argc, argv)) return false;
  if (!in_one) check_processes(app, program, arguments);
  return true;
}

void spawn_processes(const Arguments& arguments, const Body& body) {
  const int count = arguments.nproc_per_node;
  lockstep::spawn(
      [&](int local_rank) {
        if (arguments.nnodes == 1) return body(lockstep::init_process_group());
        body(lockstep::init_process_group(
            {.init_method = "tcp://" + arguments.ip + ":" + std::to_string(arguments.port),
             .rank = arguments.node_rank * count + local_rank,
             .world_size = arguments.nnodes * count}));
      },
      count);
}

void run_in_processes(const Arguments& arguments, const Body& body) {
  is_launched() ? body(lockstep::init_process_group()) : spawn_processes(arguments, body);
}

std::int64_t divide_batch(std::int64_t batch_size, int processes, int parts) {
  const std::int64_t shares = std::int64_t{processes} * parts;
  if (batch_size % shares != 0) {
    throw lockstep::UsageError("--batch_size " + std::to_string(batch_size) +
                               " cannot be divided over " + std::to_string(processes) +
                               " processes with " + std::to_string(parts) +
                               " parts each; give a multiple of " + std::to_string(shares));
  }
  return batch_size / shares;
}

examples::Cifar100Dataset read_data(const Arguments& arguments, examples::CifarPart part) {
  if (arguments.synthetic > 0) {
    return examples::Cifar100Dataset::synthetic(static_cast<std::size_t>(arguments.synthetic),
                                                part);
  }
  return examples::Cifar100Dataset::read(arguments.data, part);
}

void Score::add(const torch::Tensor& loss, const torch::Tensor& logits,
                const torch::Tensor& labels) {
  const auto samples = static_cast<double>(labels.size(0));
  if (samples == 0) return;  // of which the mean loss is no number
  loss_ += loss.item<double>() * samples;
  correct_ += logits.argmax(1).eq(labels).sum().item<double>();
  total_ += samples;
}

void Score::all_reduce(const lockstep::ProcessGroup& group) {
  const auto sums = torch::tensor({loss_, correct_, total_}, torch::kDouble).to(group.device());
  group.all_reduce(sums);
  const auto on_cpu = sums.cpu();
  loss_ = on_cpu[0].item<double>();
  correct_ = on_cpu[1].item<double>();
  total_ = on_cpu[2].item<double>();
}

Report::Report(const Arguments& arguments, int rank, std::int64_t samples,
               std::int64_t step_samples)
    : arguments_(arguments),
      rank_(rank),
      bar_({.epochs = arguments.epochs,
            .steps_per_epoch = (samples + step_samples - 1) / step_samples,
            .rank = rank}) {}

void Report::epoch(std::int64_t epoch, const Score& train, const Score& test) {
  const double seconds = std::chrono::duration<double>(Clock::now() - epoch_begin_).count();
  seconds_ += seconds;
  bar_.epoch_done();
  if (rank_ == 0) {
    std::printf("epoch %lld/%lld  loss %.4f  accuracy %.2f %%  test accuracy %.2f %%  %.2f s\n",
                static_cast<long long>(epoch + 1), static_cast<long long>(arguments_.epochs),
                train.loss(), train.accuracy(), test.accuracy(), seconds);
    std::fflush(stdout);
  }
  epoch_begin_ = Clock::now();
}

void Report::end() const {
  if (rank_ != 0) return;
  std::printf("time per epoch: %.2f s\n", seconds_ / static_cast<double>(arguments_.epochs));
}

}  // namespace cifar
