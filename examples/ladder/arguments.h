#pragma once

#include <cstdint>

#include <CLI/CLI.hpp>

#include "examples/command_line.h"

/// What the programs of the ladder take: total_epochs save_every [--batch_size 32].
struct Arguments {
  std::int64_t total_epochs = 0;
  std::int64_t save_every = 0;
  std::int64_t batch_size = 32;
};

/// Adds them to `app`, for a program that has further ones.
inline void add_arguments(CLI::App& app, Arguments& arguments) {
  const auto positive = integer_between(1, kMostOfAnything);
  app.add_option("total_epochs", arguments.total_epochs, "how often to go through the data")
      ->required()
      ->check(positive);
  app.add_option("save_every", arguments.save_every, "epochs from one checkpoint to the next")
      ->required()
      ->check(positive);
  app.add_option("--batch_size,--batch-size", arguments.batch_size, "samples a step, on each rank")
      ->capture_default_str()
      ->check(positive);
}
