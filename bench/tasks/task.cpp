#include "bench/tasks/task.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include "examples/data/digits_dataset.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "models/gpt.h"
#include "models/resnet.h"

namespace lockstep::bench {
namespace {

using torch::nn::Linear;
using torch::nn::ReLU;
using torch::nn::Sequential;

// Backward does nothing but write gradients: what is left of a step is what the exchange takes.
struct WrittenImpl : torch::nn::Module {
  // Of ResNet-18, 45 MB.
  WrittenImpl() { register_module("model", models::ResNet18()); }
  explicit WrittenImpl(std::int64_t elements) {
    constexpr std::int64_t kLargest = std::int64_t{4} << 20;
    for (std::int64_t begin = 0; begin < elements; begin += kLargest) {
      register_parameter(concat("weight", begin / kLargest),
                         torch::zeros({std::min(kLargest, elements - begin)}));
    }
  }
  at::Tensor forward(const at::Tensor& factor) {
    at::Tensor sum = factor;
    for (const at::Tensor& parameter : parameters()) sum = sum + parameter.sum();
    return sum;
  }
};
TORCH_MODULE(Written);

constexpr std::int64_t kTextLength = 64;

// Sizes of minGPT's gpt-micro, on characters.
constexpr models::GptConfig kMinGpt = {.vocab_size = 65,
                                       .block_size = kTextLength,
                                       .embd_pdrop = 0,
                                       .resid_pdrop = 0,
                                       .attn_pdrop = 0};
// As many parameters as GPT-2 has, with a smaller vocabulary: this head has weights of its own.
constexpr models::GptConfig kGpt124M = {.n_layer = 12,
                                        .n_head = 12,
                                        .n_embd = 768,
                                        .vocab_size = 20480,
                                        .block_size = 1024,
                                        .embd_pdrop = 0,
                                        .resid_pdrop = 0,
                                        .attn_pdrop = 0};

// The next token of each one in a text.
struct NextTokenImpl : torch::nn::Module {
  explicit NextTokenImpl(const models::GptConfig& config) : gpt(config) {
    register_module("gpt", gpt);
  }
  at::Tensor forward(const at::Tensor& tokens) { return std::get<0>(gpt->forward(tokens)); }
  models::Gpt gpt;
};
TORCH_MODULE(NextToken);

at::Tensor mean_squared_error(const at::Tensor& outputs, const at::Tensor& targets) {
  return at::mse_loss(outputs, targets);
}

at::Tensor cross_entropy(const at::Tensor& outputs, const at::Tensor& targets) {
  return at::cross_entropy_loss(outputs, targets);
}

at::Tensor cross_entropy_of_tokens(const at::Tensor& outputs, const at::Tensor& targets) {
  return at::cross_entropy_loss(outputs.flatten(0, 1), targets.flatten());
}

using Samples = std::function<torch::data::Example<>(std::int64_t count)>;

Samples regression_samples(std::int64_t inputs, std::int64_t outputs) {
  return [=](std::int64_t count) {
    return torch::data::Example<>(at::randn({count, inputs}), at::randn({count, outputs}));
  };
}

Samples classification_samples(std::vector<std::int64_t> shape) {
  return [shape](std::int64_t count) {
    std::vector<std::int64_t> sizes = {count};
    sizes.insert(sizes.end(), shape.begin(), shape.end());
    return torch::data::Example<>(at::randn(sizes), at::randint(100, {count}, at::kLong));
  };
}

Samples text_samples(std::int64_t vocabulary) {
  return [vocabulary](std::int64_t count) {
    const at::Tensor text = at::randint(vocabulary, {count, kTextLength + 1}, at::kLong);
    return torch::data::Example<>(text.narrow(1, 0, kTextLength).contiguous(),
                                  text.narrow(1, 1, kTextLength).contiguous());
  };
}

Task next_token(const models::GptConfig& config, std::int64_t batch_size) {
  return {.model = Sequential(NextToken(config)),
          .batch_size = batch_size,
          .samples = text_samples(config.vocab_size),
          .loss = cross_entropy_of_tokens,
          .with_adamw = true};
}

Task resnet18(std::int64_t image, std::int64_t width = 64, std::int64_t batch_size = 32) {
  return {.model = Sequential(models::ResNet18(/*classes=*/100, width)),
          .batch_size = batch_size,
          .samples = classification_samples({3, image, image}),
          .loss = cross_entropy};
}

torch::data::Example<> digits(std::int64_t count) {
  const auto all =
      examples::DigitsDataset::read(LOCKSTEP_SOURCE_DIRECTORY "/examples/data/digits.csv");
  return {all.images().narrow(0, 0, count).flatten(1), all.labels().narrow(0, 0, count)};
}

torch::data::Example<> zeros(std::int64_t count) {
  return {at::zeros({count}), at::zeros({count})};
}

/// Without values: fill() gives them, which a process does not need that receives them.
struct UnfilledLinearImpl : torch::nn::Module {
  UnfilledLinearImpl(std::int64_t inputs, std::int64_t outputs)
      : weight(register_parameter("weight", at::empty({outputs, inputs}))),
        bias(register_parameter("bias", at::empty({outputs}))) {}
  at::Tensor forward(const at::Tensor& input) { return at::linear(input, weight, bias); }
  at::Tensor weight;
  at::Tensor bias;
};
TORCH_MODULE(UnfilledLinear);

// Many parameters, and samples so few that a step is short.
Task wide_task(std::int64_t width) {
  constexpr std::int64_t kInputs = 256;
  constexpr std::int64_t kOutputs = 16;
  Sequential model(UnfilledLinear(kInputs, width), ReLU(), UnfilledLinear(width, width), ReLU(),
                   UnfilledLinear(width, kOutputs));
  const auto fill = [model] {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) {
      const double bound = 1 / std::sqrt(static_cast<double>(parameter.size(-1)));
      parameter.uniform_(-bound, bound);
    }
  };
  return {.model = model,
          .batch_size = 2,
          .samples = regression_samples(kInputs, kOutputs),
          .loss = mean_squared_error,
          .fill = fill};
}

Task written(const Written& model) {
  return {
      .model = Sequential(model), .batch_size = 1, .samples = zeros, .loss = mean_squared_error};
}

}  // namespace

Task make_task(const std::string& name) {
  if (name == "toy") {
    return {.model = Sequential(Linear(10, 10), ReLU(), Linear(10, 5)),
            .batch_size = 20,
            .samples = regression_samples(10, 5),
            .loss = mean_squared_error};
  }
  if (name == "linear") {
    return {.model = Sequential(Linear(20, 1)),
            .batch_size = 32,
            .samples = regression_samples(20, 1),
            .loss = mean_squared_error};
  }
  if (name == "digits") {
    return {.model = Sequential(Linear(64, 128), ReLU(), Linear(128, 10)),
            .batch_size = 32,
            .samples = digits,
            .loss = cross_entropy};
  }
  if (name == "mlp") {
    return {.model = Sequential(Linear(1024, 4096), ReLU(), Linear(4096, 1024), ReLU(),
                                Linear(1024, 100)),
            .batch_size = 16,
            .samples = classification_samples({1024}),
            .loss = cross_entropy};
  }
  if (name == "mlp1m") return wide_task(880);
  if (name == "mlp10m") return wide_task(3030);
  if (name == "mlp100m") return wide_task(9865);
  if (name == "resnet18") return resnet18(/*image=*/32);
  if (name == "resnet18_16x16") return resnet18(/*image=*/16);
  if (name == "resnet18_narrow") return resnet18(/*image=*/16, /*width=*/8, /*batch_size=*/16);
  if (name == "mingpt") return next_token(kMinGpt, /*batch_size=*/8);
  if (name == "mingpt_dropout") {
    models::GptConfig config = kMinGpt;  // of gpt-nano's sizes
    config.n_layer = config.n_head = 3;
    config.n_embd = 48;
    config.embd_pdrop = config.resid_pdrop = config.attn_pdrop = 0.1;
    return next_token(config, /*batch_size=*/8);
  }
  if (name == "gpt124m") return next_token(kGpt124M, /*batch_size=*/1);
  if (name == "written") return written(Written());
  for (const std::int64_t megabytes : {1, 4, 16, 64, 256, 1024}) {
    if (name != concat("written", megabytes, "mb")) continue;
    return written(Written(megabytes * (1 << 20) / std::int64_t{sizeof(float)}));
  }
  throw UsageError(
      concat("there is no task '", name,
             "'; choose toy, linear, digits, mlp, mlp1m, mlp10m, mlp100m, resnet18, "
             "resnet18_16x16, resnet18_narrow, mingpt, mingpt_dropout, gpt124m, written or "
             "written1mb to written1024mb"));
}

}  // namespace lockstep::bench
