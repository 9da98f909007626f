// ResNet-18 on CIFAR-100 with DistributedDataParallel and SyncBatchNorm (train_ddp.h), in the
// processes of a launcher; without one it starts some itself.
//
//   python3 examples/data/get.py photos32
//   lockstep run --standalone --nproc-per-node=2 distributed
#include "examples/cifar/train_ddp.h"

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    cifar::Arguments arguments;
    if (!cifar::parse({.description = "Trains ResNet-18 on CIFAR-100 in several processes:\n"
                                      "  lockstep run --standalone --nproc-per-node=2 distributed"},
                      argc, argv, arguments))
      return 0;
    cifar::run_in_processes(
        arguments, [&](const lockstep::ProcessGroup& group) { train_ddp(arguments, group); });
    return 0;
  });
}
