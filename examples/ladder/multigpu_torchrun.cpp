// The ladder, third step: the launcher starts the processes, and starts them again when one dies.
//
//   lockstep run --standalone --nproc-per-node=2 --max-restarts=3 multigpu_torchrun 50 10
//
// Against multigpu.cpp: rank and world size come from the launcher, and the program keeps a
// snapshot from which it goes on, however it ended (resuming_trainer.h). multinode.cpp is the next
// step.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include "examples/ladder/arguments.h"
#include "examples/ladder/resuming_trainer.h"

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    CLI::App app(
        "Trains a linear layer on random data, on one machine, from the last snapshot on:\n"
        "  lockstep run --standalone --nproc-per-node=2 multigpu_torchrun 50 10");
    Arguments arguments;
    add_arguments(app, arguments);
    if (!parse_command_line(app, argc, argv)) return 0;
    torch::manual_seed(0);  // the same weights in every run
    const auto group = lockstep::init_process_group();
    ResumingTrainer(arguments, group, group.local_rank()).train();
    return 0;
  });
}
