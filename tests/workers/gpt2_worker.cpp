// The C++ side of tests/python/snapshot/gpt2_pretrained.py: a GPT-2 that transformers saved, or will load.
#include <string>

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/program/run_main.h"
#include "lockstep/snapshot/save.h"
#include "lockstep/snapshot/state_dict.h"
#include "models/gpt2.h"

namespace lockstep::gpt2_worker {
namespace {

at::Tensor tokens_of(const std::string& path) {
  return read_state_dict(path).at(0).second;
}

/// The logits of a folder's model, for tokens in a file.
void write_logits(const std::string& folder, const std::string& tokens, const std::string& target) {
  const at::NoGradGuard no_grad;
  models::Gpt2 model = models::load_pretrained_gpt2(folder);
  model->eval();
  save(target, TensorDict{{"logits", model(tokens_of(tokens))}});
}

/// A new model, with other norms and biases than ones and zeros, so that each is seen.
void make(const std::string& folder, int shards) {
  at::manual_seed(3);
  models::Gpt2 model(models::Gpt2Config{
      .n_layer = 3, .n_head = 4, .n_embd = 32, .vocab_size = 101, .n_positions = 16});
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : model->parameters()) {
    parameter.add_(at::randn_like(parameter), 0.1);
  }
  models::save_pretrained(model, folder, shards);
}

/// Steps of SGD on the next tokens of a batch, without dropout.
void train(const std::string& folder, const std::string& tokens, int steps,
           const std::string& target) {
  models::Gpt2 model = models::load_pretrained_gpt2(folder);
  model->eval();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  const at::Tensor batch = tokens_of(tokens);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const at::Tensor logits = model(batch).narrow(1, 0, batch.size(1) - 1);
    at::cross_entropy_loss(logits.flatten(0, 1), batch.narrow(1, 1, batch.size(1) - 1).flatten())
        .backward();
    optimizer.step();
  }
  models::save_pretrained(model, target, 2);
}

int run(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  const auto number = [&](int place) { return parse_number<int>(argv[place]).value_or(0); };
  if (command == "logits" && argc == 5) {
    write_logits(argv[2], argv[3], argv[4]);
  } else if (command == "make" && argc == 4) {
    make(argv[2], number(3));
  } else if (command == "train" && argc == 6) {
    train(argv[2], argv[3], number(4), argv[5]);
  } else {
    throw UsageError(
        "usage: gpt2_worker logits FOLDER TOKENS TARGET | make FOLDER SHARDS | train FOLDER TOKENS "
        "STEPS TARGET");
  }
  return 0;
}

}  // namespace

int run_worker(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}

}  // namespace lockstep::gpt2_worker
