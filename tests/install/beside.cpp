// One call each of what is beside lockstep.h; with an argument, of parameter servers.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <lockstep/lockstep.h>
#include <lockstep/parameter_server.h>
#include <lockstep/pipeline.h>
#include <lockstep/rpc.h>
#include <lockstep/tensor_parallel.h>
#include <torch/optim/sgd.h>

namespace {

double pipeline_loss(const lockstep::ProcessGroup& group) {
  const torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 1));
  lockstep::Pipeline pipeline(net, {.process_group = group, .micro_batches = 2});
  return pipeline.step(at::ones({4, 4}), at::zeros({4, 1}),
                       [](const at::Tensor& outputs, const at::Tensor& targets) {
                         return at::mse_loss(outputs, targets);
                       });
}

double tensor_parallel_sum(const lockstep::ProcessGroup& group) {
  at::manual_seed(1);
  lockstep::ColumnParallelLinear layer(torch::nn::Linear(4, 4),
                                       {.process_group = group, .gather_output = true});
  return layer(at::ones({1, 4})).sum().item<double>();
}

double called(const lockstep::ProcessGroup& group) {
  lockstep::rpc::register_function("twice", [](double number) { return 2 * number; });
  const auto session = lockstep::rpc::init("worker" + std::to_string(group.rank()), group);
  const int other = group.world_size() - 1 - group.rank();
  const double answer = lockstep::rpc::call<double>(other, "twice", 21.0);
  lockstep::rpc::shutdown();
  return answer;
}

std::int64_t served_steps() {
  at::manual_seed(1);
  torch::nn::Linear net(4, 1);
  lockstep::parameter_server::Training training(
      {.parameters = net->parameters(), .optimizer = [](std::vector<at::Tensor> parameters) {
         return std::make_unique<torch::optim::SGD>(std::move(parameters), 0.1);
       }});
  training.run(3, [&](lockstep::parameter_server::ParameterClient&) {
    return [&](std::int64_t) {
      net->zero_grad();
      net(at::ones({2, 4})).mean().backward();
    };
  });
  return training.done();
}

}  // namespace

int main(int argc, char**) {
  return lockstep::run_main([&] {
    if (argc > 1) {
      std::printf("%d steps were served\n", static_cast<int>(served_steps()));
      return 0;
    }
    const auto group = lockstep::init_process_group();
    const bool is_finite = std::isfinite(pipeline_loss(group) + tensor_parallel_sum(group));
    std::printf("rank %d: losses are %s, twice 21 is %g\n", group.rank(),
                is_finite ? "finite" : "not finite", called(group));
    return 0;
  });
}
