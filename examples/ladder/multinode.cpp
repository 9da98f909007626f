// The ladder, fourth step: several machines. On the first of two, and on the other with
// --node-rank=1:
//
//   lockstep run --nnodes=2 --node-rank=0 --master-addr=HOST --secret-file=FILE multinode 50 10
//
// Against multigpu_torchrun.cpp: lines name the rank among all processes instead of that on the
// machine. Nothing else changes: devices go by the local rank, rank 0 alone reads and writes.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include "examples/ladder/arguments.h"
#include "examples/ladder/resuming_trainer.h"

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    CLI::App app(
        "Trains a linear layer on random data, on several machines, from the last snapshot on:\n"
        "  lockstep run --nnodes=2 --node-rank=0 --master-addr=HOST --secret-file=FILE multinode "
        "50 10");
    Arguments arguments;
    add_arguments(app, arguments);
    if (!parse_command_line(app, argc, argv)) return 0;
    torch::manual_seed(0);  // the same weights in every run
    const auto group = lockstep::init_process_group();
    ResumingTrainer(arguments, group, group.rank()).train();
    return 0;
  });
}
