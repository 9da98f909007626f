// A model whose layers lie on other workers: rank 0 trains, each other rank keeps a layer.
//
//   lockstep run --standalone --nproc-per-node=3 remote_layers
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/lockstep.h>
#include <lockstep/rpc.h>
#include <torch/torch.h>

namespace rpc = lockstep::rpc;

using Layer = std::shared_ptr<torch::nn::Linear>;

// What a worker lets others call. All workers register the same.
void register_functions() {
  rpc::register_function("layer", [](int inputs, int outputs, int seed) {
    torch::manual_seed(seed);
    return std::make_shared<torch::nn::Linear>(inputs, outputs);
  });
  rpc::register_function("forward", [](const Layer& layer, const at::Tensor& inputs) {
    return torch::tanh((*layer)(inputs));
  });
  rpc::register_function("weight", [](const Layer& layer) { return (*layer)->weight; });
  rpc::register_function("bias", [](const Layer& layer) { return (*layer)->bias; });
  rpc::register_optimizer("sgd", [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), /*lr=*/0.5);
  });
}

void train(int workers) {
  std::vector<rpc::RRef> layers;
  std::vector<rpc::RRef> parameters;
  for (int worker = 1; worker < workers; ++worker) {
    const bool last = worker + 1 == workers;
    layers.push_back(rpc::remote(worker, "layer", worker == 1 ? 2 : 8, last ? 1 : 8, worker));
    parameters.push_back(layers.back().remote("weight"));
    parameters.push_back(layers.back().remote("bias"));
  }
  rpc::DistributedOptimizer optimizer("sgd", parameters);

  torch::manual_seed(0);
  const auto inputs = torch::rand({64, 2}) * 2 - 1;
  const auto targets = (inputs.select(1, 0) * inputs.select(1, 1)).unsqueeze(1);
  for (int step = 1; step <= 400; ++step) {
    rpc::AutogradContext context;
    auto values = inputs;
    for (const auto& layer : layers) values = layer.call<at::Tensor>("forward", values);
    const auto loss = torch::mse_loss(values, targets);
    context.backward({loss});  // gradients stay in the context, on each worker
    optimizer.step(context);
    if (step == 1 || step % 100 == 0)
      std::printf("step %3d  loss %.5f\n", step, loss.item<double>());
  }
}

int main() {
  return lockstep::run_main([] {
    auto group = lockstep::init_process_group();
    if (group.world_size() < 2)
      throw lockstep::UsageError("remote_layers: start it on 2 ranks or more");
    register_functions();
    auto session =
        rpc::init(group.rank() == 0 ? "trainer" : "layer" + std::to_string(group.rank()));
    if (group.rank() == 0) train(group.world_size());
    rpc::shutdown();  // until then the others serve
    return 0;
  });
}
