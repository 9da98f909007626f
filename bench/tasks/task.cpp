#include "bench/tasks/task.h"

#include <vector>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
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

// Backward does nothing but write the gradients of ResNet-18, 45 MB: what is left of a step is what
// the exchange takes.
struct WrittenImpl : torch::nn::Module {
  WrittenImpl() { register_module("model", models::ResNet18()); }
  at::Tensor forward(const at::Tensor& factor) {
    at::Tensor sum = factor;
    for (const at::Tensor& parameter : parameters()) sum = sum + parameter.sum();
    return sum;
  }
};
TORCH_MODULE(Written);

// Characters of a text, and the next one of each: sizes of minGPT's gpt-micro.
constexpr std::int64_t kCharacters = 65;
constexpr std::int64_t kTextLength = 64;

struct NextCharacterImpl : torch::nn::Module {
  NextCharacterImpl() { register_module("gpt", gpt); }
  at::Tensor forward(const at::Tensor& characters) { return std::get<0>(gpt->forward(characters)); }
  models::Gpt gpt{models::GptConfig{.vocab_size = kCharacters,
                                    .block_size = kTextLength,
                                    .embd_pdrop = 0,
                                    .resid_pdrop = 0,
                                    .attn_pdrop = 0}};
};
TORCH_MODULE(NextCharacter);

at::Tensor mean_squared_error(const at::Tensor& outputs, const at::Tensor& targets) {
  return at::mse_loss(outputs, targets);
}

at::Tensor cross_entropy(const at::Tensor& outputs, const at::Tensor& targets) {
  return at::cross_entropy_loss(outputs, targets);
}

at::Tensor cross_entropy_of_characters(const at::Tensor& outputs, const at::Tensor& targets) {
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

torch::data::Example<> text_samples(std::int64_t count) {
  const at::Tensor text = at::randint(kCharacters, {count, kTextLength + 1}, at::kLong);
  return {text.narrow(1, 0, kTextLength).contiguous(), text.narrow(1, 1, kTextLength).contiguous()};
}

torch::data::Example<> digits(std::int64_t count) {
  const auto all =
      examples::DigitsDataset::read(LOCKSTEP_SOURCE_DIRECTORY "/examples/data/digits.csv");
  return {all.images().narrow(0, 0, count).flatten(1), all.labels().narrow(0, 0, count)};
}

torch::data::Example<> zeros(std::int64_t count) {
  return {at::zeros({count}), at::zeros({count})};
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
  if (name == "resnet18") {
    return {.model = Sequential(models::ResNet18(/*classes=*/100)),
            .batch_size = 32,
            .samples = classification_samples({3, 32, 32}),
            .loss = cross_entropy};
  }
  if (name == "mingpt") {
    return {.model = Sequential(NextCharacter()),
            .batch_size = 8,
            .samples = text_samples,
            .loss = cross_entropy_of_characters,
            .with_adamw = true};
  }
  if (name == "written") {
    return {.model = Sequential(Written()),
            .batch_size = 1,
            .samples = zeros,
            .loss = mean_squared_error};
  }
  throw UsageError(concat("there is no task '", name,
                          "'; choose toy, linear, digits, mlp, resnet18, mingpt or written"));
}

}  // namespace lockstep::bench
