// The program `lockstep-estimate`, which `lockstep estimate` becomes.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <system_error>

#include <CLI/CLI.hpp>

#include "launcher/command_line/ask_program.h"
#include "launcher/command_line/program_beside.h"
#include "launcher/command_line/run_tool.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "tools/estimate/estimate.h"

namespace lockstep::inline internal {
namespace {

// Of large files, which are read whole.
constexpr std::chrono::minutes kReadingTimeout{10};

double parameters_of(const std::string& model) {
  std::error_code error;
  if (!std::filesystem::exists(model, error)) return parse_parameter_count(model);
  const Told told =
      ask_program({program_beside("lockstep-snapshot", "estimate"), "show", model, "--json"},
                  {.patience = kReadingTimeout, .show_errors = true});
  if (told.status != 0) throw UsageError(concat("lockstep estimate: ", model, " cannot be read"));
  return count_parameters(told.out, model);
}

int estimate_command(const std::vector<std::string>& arguments) {
  EstimateOptions options;
  std::string model;
  bool is_json = false;
  CLI::App app(
      "Says what a model will need: memory of a rank and of a machine, the size of a snapshot, "
      "and\n"
      "what is exchanged in each step. Activations are left out, as they depend on the batch:\n"
      "Trainer::find_batch_size measures them.\n\n"
      "Examples:\n"
      "  lockstep estimate 124M --nnodes=2 --nproc-per-node=8\n"
      "  lockstep estimate 1.5B --nproc-per-node=8 --shard-optimizer\n"
      "  lockstep estimate model.safetensors\n",
      "lockstep estimate");
  app.add_option("MODEL", model,
                 "its number of parameters, 85000, 124M or 1.5B, or a file or snapshot with them")
      ->required();
  app.add_option("--nproc-per-node", options.nproc_per_node, "ranks on a machine")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--nnodes", options.nnodes, "machines")
      ->capture_default_str()
      ->check(CLI::Range(1, 100'000));
  const std::map<std::string, EstimatedOptimizer> optimizers = {
      {"sgd", EstimatedOptimizer::kSgd},
      {"momentum", EstimatedOptimizer::kMomentum},
      {"adam", EstimatedOptimizer::kAdam}};
  app.add_option("--optimizer", options.optimizer,
                 "sgd, momentum (SGD with it) or adam (AdamW, too); default adam")
      ->transform(CLI::CheckedTransformer(optimizers));
  app.add_flag("--mixed-precision", options.mixed_precision, "forward in 16 bits (Autocast)");
  app.add_flag("--shard-optimizer", options.shard_optimizer,
               "ShardedOptimizer: a share on each rank");
  app.add_flag("--ema", options.ema, "an average of the parameters (ExponentialMovingAverage)");
  app.add_flag("--asynchronous-snapshots", options.asynchronous_snapshots,
               "snapshots are written while the training goes on");
  app.add_flag("--json", is_json, "one line of JSON, in bytes");
  std::vector<std::string> words(arguments.rbegin(), arguments.rend());
  try {
    app.parse(std::move(words));
  } catch (const CLI::Success&) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& error) {
    throw UsageError(concat("lockstep estimate: ", error.what(), "; see lockstep estimate --help"));
  }
  options.parameters = parameters_of(model);
  const Estimate result = estimate(options);
  std::fputs((is_json ? to_json(result, options) + "\n" : describe(result, options)).c_str(),
             stdout);
  return 0;
}

}  // namespace
}  // namespace lockstep::inline internal

int main(int argc, char** argv) {
  return lockstep::run_tool(argc, argv, lockstep::estimate_command);
}
