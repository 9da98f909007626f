// Trains on handwritten digits and goes on when ranks are killed: the others keep their processes
// and what they have learned, and hand it to those that take the place of the lost.
//
//   lockstep run --standalone --nproc-per-node=2 --max-restarts=10 resilient
//
// Lines marked with ← are what differs from a loop that ends with its first rank; the guide is
// docs/guides/resilient.md.
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include "examples/command_line.h"
#include "examples/data/digits_dataset.h"

namespace {

using Model = lockstep::DistributedDataParallel<torch::nn::SequentialImpl>;

struct Arguments {
  std::int64_t steps = 20000;
  std::string data = "examples/data/digits.csv";
};

double percent_right(torch::nn::Sequential& net, const examples::DigitsDataset& digits) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const auto is_right = net->forward(digits.images()).argmax(1).eq(digits.labels());
  return 100 * is_right.to(torch::kDouble).mean().item<double>();
}

// Of all bits and their places.
std::int64_t checksum(const torch::nn::Sequential& net) {
  const torch::NoGradGuard no_grad;
  const auto bits = torch::nn::utils::parameters_to_vector(net->parameters()).view(torch::kInt);
  return (bits.to(torch::kLong) * torch::arange(1, bits.numel() + 1)).sum().item<std::int64_t>();
}

int train(const Arguments& arguments) {
  const auto digits = examples::DigitsDataset::read(arguments.data).split();
  const auto& images = digits.train.images();
  const auto& labels = digits.train.labels();

  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Flatten(), torch::nn::Linear(64, 128), torch::nn::ReLU(),
                            torch::nn::Dropout(0.2), torch::nn::Linear(128, 10));
  torch::optim::Adam optimizer(net->parameters(), /*lr=*/1e-3);
  torch::optim::StepLR scheduler(optimizer, /*step_size=*/5000, /*gamma=*/0.5);

  // ← In place of a DistributedSampler: a step's samples follow from its number and the ranks.
  const lockstep::GlobalBatches batches({.dataset_size = labels.numel(), .batch_size = 64});
  // ← In place of init_process_group(): all that steps change, named once. It is on the CPU, which
  // nccl, the choice where there are GPUs, does not take.
  lockstep::ResilientTraining training(
      {.model = net.ptr(), .optimizer = &optimizer, .scheduler = &scheduler},
      {.init = {.backend = torch::cuda::is_available() ? "gloo" : ""}});

  const std::int64_t steps_a_line = std::max<std::int64_t>(1, arguments.steps / 10);
  // ← In place of `for (step …)`. The outer function is called anew for each group of ranks.
  training.run(arguments.steps, [&](const lockstep::ProcessGroup& group) {
    if (group.rank() == 0) {
      std::cout << "ranks: " << group.world_size() << ", from step " << training.steps_done()
                << " on" << std::endl;
    }
    const auto model = std::make_shared<Model>(net);
    return [&, model, group](std::int64_t step) {                        // ←
      const auto indices = torch::tensor(batches.indices(step, group));  // ←
      optimizer.zero_grad();
      const auto loss = torch::cross_entropy_loss(model->forward(images.index_select(0, indices)),
                                                  labels.index_select(0, indices));
      // ← In place of loss.backward(): parts may have different sizes.
      model->backward(loss, {.weight = static_cast<double>(indices.numel())});
      optimizer.step();
      // ← No scheduler.step(): run() makes it.
      if (group.rank() == 0 && (step + 1) % steps_a_line == 0) {
        std::cout << "step " << step + 1 << "/" << arguments.steps << "  loss " << std::fixed
                  << std::setprecision(4) << loss.item<double>() << std::endl;
      }
    };
  });

  if (training.process_group().rank() == 0) {
    std::cout << "test accuracy " << std::fixed << std::setprecision(2)
              << percent_right(net, digits.test) << " %, checksum of the parameters "
              << checksum(net) << std::endl;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] {
    Arguments arguments;
    CLI::App app(
        "Trains on handwritten digits and continues when ranks are killed:\n"
        "  lockstep run --standalone --nproc-per-node=2 --max-restarts=10 resilient");
    app.option_defaults()->always_capture_default();
    app.add_option("--steps", arguments.steps, "total optimizer steps")
        ->check(integer_between(1, kMostOfAnything));
    app.add_option("--data", arguments.data, "the digits: 64 pixels and a label a line");
    return parse_command_line(app, argc, argv) ? train(arguments) : 0;
  });
}
