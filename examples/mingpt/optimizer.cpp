#include "examples/mingpt/optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"

namespace mingpt {
namespace {

/// The names of the parameters of linear layers, and of the matrix that the attention has beside.
std::set<std::string> decaying_names(const torch::nn::Module& module) {
  std::set<std::string> names;
  for (const auto& each : module.named_modules()) {
    const std::string prefix = each.key().empty() ? "" : each.key() + ".";
    const bool linear = each.value()->as<torch::nn::LinearImpl>() != nullptr;
    for (const auto& parameter : each.value()->named_parameters(/*recurse=*/false)) {
      if ((linear && parameter.key() == "weight") || parameter.key() == "in_proj_weight") {
        names.insert(prefix + parameter.key());
      }
    }
  }
  return names;
}

bool never_decays(const std::string& name, const at::Tensor& parameter) {
  return name.ends_with("bias") || name.ends_with("pos_emb") || name.ends_with("tok_emb.weight") ||
         parameter.dim() == 1;
}

}  // namespace

torch::optim::AdamW make_optimizer(const torch::nn::Module& module, const OptimizerConfig& config) {
  const std::set<std::string> decaying = decaying_names(module);
  std::map<std::string, at::Tensor> sorted;
  for (const auto& parameter : module.named_parameters())
    sorted.insert({parameter.key(), parameter.value()});

  std::vector<at::Tensor> decay;
  std::vector<at::Tensor> no_decay;
  for (const auto& [name, parameter] : sorted) {
    if (decaying.contains(name)) {
      decay.push_back(parameter);
    } else if (never_decays(name, parameter)) {
      no_decay.push_back(parameter);
    } else {
      throw lockstep::UsageError(
          lockstep::concat("group parameters for AdamW: nothing says whether ", name,
                           " decays; name it in optimizer.cpp"));
    }
  }
  const auto options = [&](double weight_decay) {
    return torch::optim::AdamWOptions(config.learning_rate)
        .betas(std::tuple(config.beta1, config.beta2))
        .weight_decay(weight_decay);
  };
  const auto group = [&](std::vector<at::Tensor> parameters, double weight_decay) {
    return torch::optim::OptimizerParamGroup(
        std::move(parameters), std::make_unique<torch::optim::AdamWOptions>(options(weight_decay)));
  };
  return torch::optim::AdamW({group(decay, config.weight_decay), group(no_decay, 0.0)},
                             options(config.weight_decay));
}

double learning_rate(const OptimizerConfig& config, std::int64_t step, std::int64_t total_steps) {
  if (step < config.warmup_steps) {
    return config.learning_rate * static_cast<double>(step + 1) /
           static_cast<double>(config.warmup_steps);
  }
  const auto cosine_steps = std::max<std::int64_t>(1, total_steps - config.warmup_steps);
  const double done = std::min(
      1.0, static_cast<double>(step - config.warmup_steps) / static_cast<double>(cosine_steps));
  const double height = 0.5 * (1 + std::cos(std::numbers::pi * done));
  const double last = config.final_learning_rate_factor;
  return config.learning_rate * (last + (1 - last) * height);
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

}  // namespace mingpt
