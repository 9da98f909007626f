#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/pipeline/pipeline.h"

namespace lockstep {
namespace {

using torch::nn::Sequential;

void check_cuts(const std::vector<std::int64_t>& cuts, std::size_t layers) {
  std::int64_t before = 0;
  for (const std::int64_t cut : cuts) {
    if (cut <= before || cut >= static_cast<std::int64_t>(layers)) {
      throw UsageError(concat("divide ", layers, " layers into stages: a cut before layer ", cut,
                              before > 0 ? concat(", after one before layer ", before) : "",
                              "; cuts rise and leave each stage a layer"));
    }
    before = cut;
  }
}

void check_nothing_is_shared(const std::vector<Sequential>& stages) {
  std::map<const void*, std::pair<std::size_t, std::string>> owners;
  const auto add = [&](std::size_t stage, const auto& named_tensors) {
    for (const auto& named : named_tensors) {
      const auto [owner, is_new] =
          owners.try_emplace(named.value().unsafeGetTensorImpl(), stage, named.key());
      if (is_new || owner->second.first == stage) continue;
      throw UsageError(concat("divide layers into stages: ", named.key(), " of stage ", stage,
                              " is ", owner->second.second, " of stage ", owner->second.first,
                              ", too; cut so that one stage has both"));
    }
  };
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    add(stage, stages[stage]->named_parameters());
    add(stage, stages[stage]->named_buffers());
  }
}

// Puts back what a forward pass changes beside its outputs.
class Unchanged {
 public:
  explicit Unchanged(const Sequential& net)
      : buffers_(net->buffers()), generator_(at::detail::getDefaultCPUGenerator()) {
    for (const at::Tensor& buffer : buffers_) copies_.push_back(buffer.clone());
    const std::lock_guard lock(generator_.mutex());
    random_state_ = generator_.get_state();
  }
  ~Unchanged() {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(copies_[i]);
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(random_state_);
  }
  Unchanged(const Unchanged&) = delete;
  Unchanged& operator=(const Unchanged&) = delete;

 private:
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> copies_;
  at::Generator generator_;
  at::Tensor random_state_;
};

void finish(const at::Tensor& tensor) {
  if (tensor.is_cuda()) torch::cuda::synchronize(tensor.get_device());
}

// One forward and backward pass. Gradients do not go to .grad.
std::pair<at::Tensor, double> run_layer(torch::nn::AnyModule& layer, const at::Tensor& sample) {
  at::Tensor input = sample.detach();
  std::vector<at::Tensor> leaves;
  if (input.is_floating_point()) leaves.push_back(input.requires_grad_());
  for (const at::Tensor& parameter : layer.ptr()->parameters()) {
    if (parameter.requires_grad()) leaves.push_back(parameter);
  }
  finish(input);
  const auto start = std::chrono::steady_clock::now();
  const at::Tensor output = layer.forward(input);
  if (output.requires_grad()) {
    torch::autograd::grad({output}, leaves, {at::ones_like(output)}, /*retain_graph=*/false,
                          /*create_graph=*/false, /*allow_unused=*/true);
  }
  finish(output);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return {output.detach(), taken.count()};
}

std::vector<double> measure(const Sequential& net, at::Tensor sample, int repetitions) {
  const Unchanged unchanged(net);
  const at::AutoGradMode with_gradients(true);
  std::vector<double> costs;
  for (torch::nn::AnyModule layer : *net) {  // A copy is the same layer.
    at::Tensor output;
    double fastest = std::numeric_limits<double>::infinity();
    for (int i = 0; i <= repetitions; ++i) {
      const auto [outputs, seconds] = run_layer(layer, sample);
      output = outputs;
      if (i > 0) fastest = std::min(fastest, seconds);
    }
    costs.push_back(fastest);
    sample = output;
  }
  return costs;
}

}  // namespace

std::vector<Sequential> cut_into_stages(const Sequential& net,
                                        const std::vector<std::int64_t>& cuts) {
  check_cuts(cuts, net->size());
  const auto names = net->named_children().keys();
  std::vector<Sequential> stages(1, Sequential(std::make_shared<torch::nn::SequentialImpl>()));
  std::size_t index = 0;
  for (const torch::nn::AnyModule& layer : *net) {
    if (stages.size() <= cuts.size() &&
        static_cast<std::size_t>(cuts[stages.size() - 1]) == index) {
      stages.emplace_back(std::make_shared<torch::nn::SequentialImpl>());
    }
    stages.back()->push_back(names[index++], layer);
  }
  for (Sequential& stage : stages) stage->train(net->is_training());
  check_nothing_is_shared(stages);
  return stages;
}

std::vector<double> parameter_costs(const Sequential& net) {
  std::vector<double> costs;
  for (const torch::nn::AnyModule& layer : *net) {
    double cost = 0;
    for (const at::Tensor& parameter : layer.ptr()->parameters()) {
      cost += static_cast<double>(parameter.numel());
    }
    costs.push_back(cost);
  }
  return costs;
}

std::vector<double> measured_costs(const Sequential& net, const at::Tensor& sample,
                                   const MeasureOptions& options) {
  if (options.repetitions < 1) {
    throw UsageError(
        concat("measure layers: ", options.repetitions, " repetitions; it takes at least 1"));
  }
  const ProcessGroup& group = options.process_group;
  if (!group) return measure(net, sample, options.repetitions);
  std::vector<double> costs(net->size());
  if (group.rank() == 0) costs = measure(net, sample, options.repetitions);
  const at::Tensor shared = at::tensor(costs, at::kDouble).to(group.device());
  group.broadcast(shared, 0);
  const at::Tensor figures = shared.cpu();
  return {figures.const_data_ptr<double>(), figures.const_data_ptr<double>() + figures.numel()};
}

}  // namespace lockstep
