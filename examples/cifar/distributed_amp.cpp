// As distributed.cpp, in mixed precision: bfloat16, or float16 with a scaled loss.
//
//   distributed_amp --amp_dtype fp16
#include "examples/cifar/train_ddp.h"

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    cifar::Arguments arguments;
    if (!cifar::parse(
            {.description = "Trains ResNet-18 on CIFAR-100 in mixed precision:\n"
                            "  lockstep run --standalone --nproc-per-node=2 distributed_amp",
             .has_amp_dtype = true},
            argc, argv, arguments))
      return 0;
    const auto dtype = arguments.amp_dtype == "fp16" ? torch::kHalf : torch::kBFloat16;
    cifar::run_in_processes(arguments, [&](const lockstep::ProcessGroup& group) {
      train_ddp(arguments, group, dtype);
    });
    return 0;
  });
}
