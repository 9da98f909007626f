// As distributed.cpp, each process's batch in parts: gradients are exchanged after the last.
//
//   distributed_gradient_accumulation --grad_accu_steps 4
#include "examples/cifar/train_ddp.h"

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    cifar::Arguments arguments;
    if (!cifar::parse({.description = "Trains ResNet-18 on CIFAR-100, adding up gradients:\n"
                                      "  lockstep run --standalone --nproc-per-node=2 "
                                      "distributed_gradient_accumulation",
                       .grad_accu_steps = 4},
                      argc, argv, arguments))
      return 0;
    cifar::run_in_processes(
        arguments, [&](const lockstep::ProcessGroup& group) { train_ddp(arguments, group); });
    return 0;
  });
}
