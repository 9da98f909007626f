#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <system_error>

#include "launcher/command_line/ask_program.h"
#include "launcher/command_line/program_beside.h"
#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "tools/commands.h"
#include "tools/estimate/estimate.h"
#include "tools/parse_flags.h"

namespace lockstep::inline internal {
namespace {

// A large file is read whole.
constexpr std::chrono::minutes kReadingTimeout{10};

double parameters_of(const std::string& model) {
  std::error_code error;
  if (!std::filesystem::exists(model, error)) return parse_parameter_count(model);
  const ProgramResult result =
      ask_program({program_beside("lockstep-snapshot", "estimate"), "show", model, "--json"},
                  {.patience = kReadingTimeout, .show_errors = true});
  if (result.status != 0) throw UsageError(concat("estimate: ", model, " cannot be read"));
  return count_parameters(result.out, model);
}

}  // namespace

int estimate_command(const std::vector<std::string>& arguments) {
  EstimateOptions options;
  std::string model;
  std::string precision = "fp32";
  bool is_json = false;
  CLI::App app(
      "Estimates what training a model needs: memory of a rank and of a machine, the size of a "
      "snapshot, and\n"
      "the traffic of a step. Activations depend on the batch: Trainer::find_batch_size measures "
      "them.",
      "lockstep estimate");
  app.add_option("MODEL", model,
                 "its number of parameters (85000, 124M, 1.5B), or a snapshot or file of weights")
      ->required();
  add_integer(app, "--nproc-per-node", options.nproc_per_node, 1, "ranks on a machine (default 2)");
  add_integer(app, "--nnodes", options.nnodes, 1, "machines (default 1)");
  const std::map<std::string, EstimatedOptimizer> optimizers = {
      {"sgd", EstimatedOptimizer::kSgd},
      {"momentum", EstimatedOptimizer::kMomentum},
      {"adam", EstimatedOptimizer::kAdam}};
  app.add_option("--optimizer", options.optimizer,
                 "sgd, momentum (SGD with momentum) or adam (also AdamW); default adam")
      ->transform(CLI::CheckedTransformer(optimizers))
      ->option_text("NAME");
  app.add_option("--precision", precision,
                 "fp32 (default), or bf16 or fp16: 16-bit forward pass (Autocast)")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->option_text("NAME");
  app.add_flag("--shard-optimizer", options.shard_optimizer,
               "optimizer state sharded over all ranks (ShardedOptimizer)");
  app.add_flag("--ema", options.ema, "averaged weights (ExponentialMovingAverage)");
  app.add_flag("--asynchronous-snapshots", options.asynchronous_snapshots,
               "snapshots written in the background, from a copy");
  app.add_flag("--json", is_json, "print one line of JSON, in bytes");
  app.footer(
      "Examples:\n"
      "  lockstep estimate 124M --nnodes=2 --nproc-per-node=8\n"
      "  lockstep estimate model.safetensors --shard-optimizer");
  if (!parse_flags(app, arguments)) return 0;
  options.mixed_precision = precision != "fp32";
  options.parameters = parameters_of(model);
  const Estimate result = estimate(options);
  std::fputs((is_json ? to_json(result, options) + "\n" : describe(result, options)).c_str(),
             stdout);
  return 0;
}

}  // namespace lockstep::inline internal
