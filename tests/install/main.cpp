#include <cstdio>

#include <ATen/ATen.h>
#include <lockstep/lockstep.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

int main() {
  return lockstep::run_main([] {
    auto group = lockstep::init_process_group();
    lockstep::DistributedDataParallel model(torch::nn::Linear(20, 1), {.process_group = group});
    torch::optim::SGD optimizer(model->parameters(), 1e-3);
    lockstep::DistributedSampler sampler(2048, {.process_group = group, .shuffle = true});
    for (int step = 0; step < 10; ++step) {
      optimizer.zero_grad();
      at::mse_loss(model(at::rand({32, 20})), at::rand({32, 1})).backward();
      optimizer.step();
    }
    std::printf("rank %d of %d has %zu samples\n", group.rank(), group.world_size(),
                sampler.size());
    return 0;
  });
}
