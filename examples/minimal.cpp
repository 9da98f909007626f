// The smallest training program: each rank draws its own samples, all learn the same weights.
//
//   lockstep run --standalone --nproc-per-node=2 minimal
#include <iostream>

#include <lockstep/lockstep.h>
#include <torch/torch.h>

int main() {
  return lockstep::run_main([] {
    auto group = lockstep::init_process_group();
    lockstep::DistributedDataParallel model(torch::nn::Linear(3, 1), {.process_group = group});
    torch::optim::SGD optimizer(model->parameters(), /*lr=*/0.1);
    torch::manual_seed(group.rank());
    for (int step = 0; step < 200; ++step) {
      auto inputs = torch::randn({32, 3});
      auto targets = inputs.matmul(torch::tensor({{1.0F}, {2.0F}, {3.0F}}));
      optimizer.zero_grad();
      auto loss = torch::mse_loss(model(inputs), targets);
      loss.backward();  // gradients arrive averaged over the ranks
      optimizer.step();
    }
    if (group.rank() == 0) std::cout << "learned " << model->weight << "\n";
    return 0;
  });
}
