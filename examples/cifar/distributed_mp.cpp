// As distributed.cpp, in processes that the program starts itself. On the second of two machines:
//
//   distributed_mp --nnodes 2 --node_rank 1 --ip first --port 29500 --nproc_per_node 2
#include "examples/cifar/train_ddp.h"

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    cifar::Arguments arguments;
    if (!cifar::parse({.description = "Trains ResNet-18 on CIFAR-100 in processes of its own:\n"
                                      "  distributed_mp --nproc_per_node 2",
                       .processes = cifar::Program::Processes::kItsOwn},
                      argc, argv, arguments))
      return 0;
    cifar::spawn_processes(
        arguments, [&](const lockstep::ProcessGroup& group) { train_ddp(arguments, group); });
    return 0;
  });
}
