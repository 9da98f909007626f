// Trains a small GPT on text, character by character, and lets it write:
//
//   lockstep run --standalone --nproc-per-node=2 mingpt
//   mingpt --sample "The gradient"
//
// The C++ counterpart of PyTorch's minGPT-DDP tutorial (pytorch/examples, distributed/minGPT-ddp):
// its model, names and configuration. The parts are in examples/mingpt/, a file each.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "examples/command_line.h"
#include "examples/mingpt/config.h"
#include "examples/mingpt/model_file.h"
#include "examples/mingpt/sample.h"
#include "examples/mingpt/trainer.h"
#include "lockstep/lockstep.h"

namespace {

struct Arguments {
  std::string config_file;
  std::string precision;
  std::vector<std::string> overrides;
  bool show_config = false;
  mingpt::SampleOptions sampling;
};

mingpt::Config configure(const Arguments& arguments) {
  mingpt::Config config;
  // English documents of this project. All of docs/ would add the characters of the Chinese guides.
  config.data.path = {
      LOCKSTEP_SOURCE_DIRECTORY "/docs/decisions", LOCKSTEP_SOURCE_DIRECTORY "/CHANGELOG.md",
      LOCKSTEP_SOURCE_DIRECTORY "/CONTRIBUTING.md", LOCKSTEP_SOURCE_DIRECTORY "/README.md"};
  if (!arguments.config_file.empty()) {
    std::ifstream file(arguments.config_file);
    if (!file || std::filesystem::is_directory(arguments.config_file)) {
      throw lockstep::UsageError("--config " + arguments.config_file +
                                 ": cannot be read; give a file of JSON");
    }
    mingpt::apply_json(config, {std::istreambuf_iterator<char>(file), {}}, arguments.config_file);
  }
  for (const std::string& each : arguments.overrides) mingpt::apply_override(config, each);
  if (!arguments.precision.empty()) {
    mingpt::apply_override(config, "trainer_config.precision=" + arguments.precision);
  }
  return config;
}

int write_text(const mingpt::Config& config, mingpt::SampleOptions options) {
  auto [gpt, vocabulary, path] = mingpt::read_model(config.trainer.snapshot_path);
  options.seed = config.trainer.seed;
  std::cout << mingpt::sample_text(*gpt, vocabulary, options) << std::endl;
  return 0;
}

int train(const mingpt::Config& config) {
  const auto group = lockstep::init_process_group();
  mingpt::Trainer trainer(config, group);
  trainer.train();
  if (group.rank() == 0) {
    std::cout << "\nIt writes:\n" << trainer.sample() << "\n" << std::flush;
  }
  return 0;
}

int run(int argc, char** argv) {
  Arguments arguments;
  auto& sampling = arguments.sampling;
  CLI::App app(
      "Trains a small GPT on text, character by character, and lets it write.\n"
      "Start it with `lockstep run --standalone --nproc-per-node=2 mingpt`, or alone. It writes\n"
      "snapshots and, started again, resumes from the last one.");
  app.add_option("--config", arguments.config_file,
                 "a JSON file of sections: gpt_config, data_config, trainer_config, "
                 "optimizer_config");
  app.add_option("--set,overrides", arguments.overrides,
                 "trainer_config.max_epochs=3 and the like, after the file; see --show-config")
      ->expected(0, -1);
  app.add_option("--precision", arguments.precision, "fp32, bf16 or fp16")->type_name("DTYPE");
  app.add_flag("--show-config", arguments.show_config, "print all keys and their values, and end");
  auto* prompt = app.add_option("--sample", sampling.prompt,
                                "do not train: continue this text, with the newest snapshot");
  app.add_option("--length", sampling.length, "characters to write")
      ->check(integer_between(0, 1'000'000))
      ->needs(prompt)
      ->capture_default_str();
  app.add_option("--temperature", sampling.temperature,
                 "below 1 surer, above 1 more varied, 0 always the likeliest character")
      ->check(require_not_negative)
      ->needs(prompt)
      ->capture_default_str();
  app.add_option("--top-k", sampling.top_k, "choose among this many characters only")
      ->check(integer_between(1, kMostOfAnything))
      ->needs(prompt);
  if (!parse_command_line(app, argc, argv)) return 0;
  const mingpt::Config config = configure(arguments);
  // Every process has the same arguments: one of them speaks.
  if (arguments.show_config) {
    if (is_first_process()) std::cout << mingpt::describe(config);
    return 0;
  }
  if (prompt->count() > 0) return is_first_process() ? write_text(config, sampling) : 0;
  return train(config);
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
