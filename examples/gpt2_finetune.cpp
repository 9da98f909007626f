// Trains a GPT-2 further that transformers saved, fully sharded, and writes it for transformers:
//
//   lockstep run --standalone --nproc-per-node=2 gpt2_finetune
//     --model=gpt2 --text=examples/data/sonnets.txt --save=gpt2-sonnets
//
// The text is read byte by byte, by the tokens that the published vocabulary has for single bytes.
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include "examples/command_line.h"
#include "lockstep/fully_shard.h"
#include "lockstep/lockstep.h"
#include "models/gpt2.h"

namespace {

struct Arguments {
  std::filesystem::path model;
  std::filesystem::path text;
  std::filesystem::path save;
  std::int64_t steps = 50;
  std::int64_t batch_size = 4;
  std::int64_t length = 64;
  double lr = 3e-5;
  int shards = 1;
};

// The vocabulary of GPT-2 begins with the bytes that are printed as a character, in order; the
// others follow.
std::array<std::int64_t, 256> tokens_of_bytes() {
  const auto is_printed = [](int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 161 && byte <= 172) || byte >= 174;
  };
  std::array<std::int64_t, 256> tokens{};
  std::int64_t next = 0;
  for (const bool printed : {true, false}) {
    for (int byte = 0; byte < 256; ++byte) {
      if (is_printed(byte) == printed) tokens[static_cast<std::size_t>(byte)] = next++;
    }
  }
  return tokens;
}

torch::Tensor read_tokens(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw lockstep::UsageError("--text " + path.string() + ": cannot be read");
  const auto tokens = tokens_of_bytes();
  std::vector<std::int64_t> text;
  for (auto byte = std::istreambuf_iterator<char>(file); byte != std::istreambuf_iterator<char>();
       ++byte) {
    text.push_back(tokens[static_cast<unsigned char>(*byte)]);
  }
  return torch::tensor(text);
}

// This rank's part of a step's batch, [batch, length + 1]: pieces of the text, one behind the
// other.
torch::Tensor batch_of(const torch::Tensor& text, std::int64_t step, const Arguments& arguments,
                       const lockstep::ProcessGroup& group) {
  std::vector<torch::Tensor> pieces;
  const std::int64_t first = (step * group.world_size() + group.rank()) * arguments.batch_size;
  for (std::int64_t i = 0; i < arguments.batch_size; ++i) {
    const std::int64_t begin = (first + i) * arguments.length % (text.size(0) - arguments.length);
    pieces.push_back(text.narrow(0, begin, arguments.length + 1));
  }
  return torch::stack(pieces);
}

void train(const Arguments& arguments) {
  const auto group = lockstep::init_process_group();
  if (group.rank() == 0 && std::filesystem::exists(arguments.save)) {
    throw lockstep::UsageError("--save " + arguments.save.string() + " exists; name a new folder");
  }
  models::Gpt2 gpt = models::load_pretrained_gpt2(arguments.model);
  const models::Gpt2Config config = gpt->config();
  const torch::Tensor text = read_tokens(arguments.text);
  if (text.size(0) <= arguments.length || arguments.length > config.n_positions ||
      config.vocab_size < 256) {
    throw lockstep::UsageError("--length " + std::to_string(arguments.length) +
                               ": the text, or the model, is too small for it");
  }

  auto model = lockstep::fully_shard(
      gpt, {.process_group = group, .auto_wrap_policy = models::is_gpt2_block});
  lockstep::AdamW optimizer(model.parameters(), {.lr = arguments.lr});
  torch::manual_seed(group.rank());  // of dropout
  for (std::int64_t step = 0; step < arguments.steps; ++step) {
    const torch::Tensor batch = batch_of(text, step, arguments, group);
    optimizer.zero_grad();
    const torch::Tensor logits = model(batch.narrow(1, 0, arguments.length));
    torch::Tensor loss = torch::nn::functional::cross_entropy(
        logits.flatten(0, 1), batch.narrow(1, 1, arguments.length).flatten());
    loss.backward();
    lockstep::clip_grad_norm_(model.parameters(), 1.0, {.process_group = model.process_group()});
    optimizer.step();
    loss = loss.detach();
    group.all_reduce(loss, {.op = lockstep::ReduceOp::kAvg});
    if (group.rank() == 0) {
      std::cout << "step " << step + 1 << " loss " << loss.item<double>() << std::endl;
    }
  }

  const lockstep::TensorDict weights = model.full_state_dict({.rank0_only = true});
  if (group.rank() != 0) return;
  models::save_pretrained(config, weights, arguments.save, arguments.shards);
  std::cout << "wrote " << arguments.save.string() << std::endl;
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "Trains a GPT-2 further that transformers saved, fully sharded over the ranks, and writes "
      "it\n"
      "for transformers. Start it with `lockstep run --standalone --nproc-per-node=2\n"
      "gpt2_finetune ...`, or alone.");
  app.add_option("--model", arguments.model, "folder of transformers' save_pretrained")->required();
  app.add_option("--text", arguments.text, "file to train on")->required();
  app.add_option("--save", arguments.save, "new folder for the result")->required();
  const auto add_count = [&](const char* name, auto& count, const char* help) {
    app.add_option(name, count, help)
        ->check(integer_between(1, kMostOfAnything))
        ->capture_default_str();
  };
  add_count("--steps", arguments.steps, "updates of the weights");
  add_count("--batch-size", arguments.batch_size, "pieces of text in a step of one rank");
  add_count("--length", arguments.length, "tokens of a piece");
  add_count("--shards", arguments.shards, "files for the weights");
  app.add_option("--lr", arguments.lr, "learning rate of AdamW")
      ->check(require_positive)
      ->capture_default_str();
  if (!parse_command_line(app, argc, argv)) return 0;
  train(arguments);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
