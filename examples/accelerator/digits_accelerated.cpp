// digits_loop.cpp with four lines of its training changed, marked with ←, and the printing: on any
// number of processes.
//
//   lockstep run --standalone --nproc-per-node=2 digits_accelerated
#include <iostream>

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include "examples/data/digits_dataset.h"

int train(const char* file) {
  lockstep::Accelerator accelerator;  // ←
  torch::manual_seed(0);
  auto digits = examples::DigitsDataset::read(file).split();
  torch::nn::Sequential net(torch::nn::Flatten(), torch::nn::Linear(64, 128), torch::nn::ReLU(),
                            torch::nn::Linear(128, 10));
  torch::optim::Adam optimizer(net->parameters(), 1e-3);
  auto samples = digits.train.map(torch::data::transforms::Stack<>());
  auto [model, data] = accelerator.prepare(net, torch::data::make_data_loader(samples, 32));  // ←
  for (int epoch = 0; epoch < 10; ++epoch) {
    for (auto& batch : *data) {
      optimizer.zero_grad();
      auto output = model.forward(batch.data);  // ←
      auto loss = torch::cross_entropy_loss(output, batch.target);
      accelerator.backward(loss);  // ←
      optimizer.step();
    }
  }
  const torch::NoGradGuard no_grad;
  auto right = net->forward(digits.test.images()).argmax(1).eq(digits.test.labels());
  auto accuracy = 100 * right.to(torch::kDouble).mean().item<double>();
  accelerator.print("test accuracy ", accuracy, " %");
  return 0;
}

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return train(argc > 1 ? argv[1] : "examples/data/digits.csv"); });
}
