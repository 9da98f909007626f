#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "lockstep/base/internal/parse_number.h"
#include "lockstep/program/program_options.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {
namespace {

using Seconds = std::chrono::duration<double>;

template <class Enum, std::size_t N>
using Names = std::array<std::pair<const char*, Enum>, N>;

constexpr Names<Strategy, 2> kStrategy = {
    {{"ddp", Strategy::kDdp}, {"fully_shard", Strategy::kFullyShard}}};
constexpr Names<HybridShard, 3> kHybridShard = {
    {{"none", HybridShard::kNone},
     {"shard_in_machines", HybridShard::kShardInMachines},
     {"replicate_in_machines", HybridShard::kReplicateInMachines}}};
constexpr Names<NonFinite, 4> kNonFinite = {{{"ignore", NonFinite::kIgnore},
                                             {"report", NonFinite::kReport},
                                             {"skip", NonFinite::kSkip},
                                             {"stop", NonFinite::kStop}}};
// Then as Lightning spells them.
constexpr Names<Precision, 6> kPrecision = {{{"fp32", Precision::kFloat32},
                                             {"bf16", Precision::kBFloat16},
                                             {"fp16", Precision::kFloat16},
                                             {"32-true", Precision::kFloat32},
                                             {"bf16-mixed", Precision::kBFloat16},
                                             {"16-mixed", Precision::kFloat16}}};
constexpr Names<GradientClipAlgorithm, 2> kClip = {
    {{"norm", GradientClipAlgorithm::kNorm}, {"value", GradientClipAlgorithm::kValue}}};
constexpr Names<MetricLogger, 5> kLogger = {
    {{"", MetricLogger::kNone},
     {"tensorboard", MetricLogger::kTensorBoard},
     {"csv", MetricLogger::kCsv},
     {"tensorboard,csv", MetricLogger::kTensorBoardAndCsv},
     {"csv,tensorboard", MetricLogger::kTensorBoardAndCsv}}};
constexpr Names<Profiler, 2> kProfiler = {{{"", Profiler::kNone}, {"simple", Profiler::kSimple}}};

// A positive number, or 0 for what holds without one.
ProgramOption positive_option(std::string name, std::string help,
                              std::function<void(std::optional<double>)> set,
                              std::function<std::optional<double>()> get) {
  return {.name = std::move(name),
          .help = std::move(help),
          .set =
              [set = std::move(set)](const std::string& text) {
                const auto number = parse_number<double>(text);
                if (!number || *number < 0) return std::string("must be a number of at least 0");
                set(*number > 0 ? number : std::nullopt);
                return std::string();
              },
          .get = [get = std::move(get)] { return nlohmann::json(get().value_or(0)).dump(); },
          .kind = ProgramOption::Kind::kNumber};
}

ProgramOption reshard_option(ReshardAfterForward& value) {
  return {.name = "fully_shard.reshard_after_forward",
          .help =
              "free a unit's parameters after forward, and gather them again in backward; a "
              "number N: over N ranks",
          .set =
              [&value](const std::string& text) {
                const auto ranks = parse_number<std::int64_t>(text);
                if (!ranks && text != "true" && text != "false") {
                  return std::string("must be true, false or a number of ranks");
                }
                value = ranks ? ReshardAfterForward(*ranks) : ReshardAfterForward(text == "true");
                return std::string();
              },
          .get = [&value] { return value.text(); },
          .kind = ProgramOption::Kind::kFlagOrNumber};
}

ProgramOption seconds_option(std::string name, std::string help,
                             std::optional<std::chrono::milliseconds>& value) {
  return positive_option(
      std::move(name), std::move(help),
      [&value](std::optional<double> seconds) {
        value.reset();
        if (seconds) value = std::chrono::ceil<std::chrono::milliseconds>(Seconds(*seconds));
      },
      [&value] { return value ? std::optional(Seconds(*value).count()) : std::nullopt; });
}

void add_ranks(ProgramOptions& program, TrainerOptions& options) {
  program.set_group("Ranks and communication");
  program.add("devices", options.devices, "processes to start, unless a launcher starts them");
  program.add("num_nodes", options.num_nodes, "machines that a launcher must have; 0: any number");
  program.add("init.backend", options.init.backend,
              "shm, hierarchical, gloo, nccl or mpi; empty: chosen automatically");
  program.add("one_copy_per_machine", options.one_copy_per_machine,
              "one copy of parameters and optimizer state per machine");
  program.add(seconds_option("init.timeout", "timeout of a collective in seconds; 0: 600",
                             options.init.timeout));
  program.add(seconds_option("init.init_timeout",
                             "timeout in seconds for all ranks to join; 0: 300",
                             options.init.init_timeout));
  program.add(positive_option(
      "ddp.bucket_cap_mb", "size of a gradient bucket in MiB; 0: chosen automatically",
      [&options](std::optional<double> megabytes) { options.ddp.bucket_cap_mb = megabytes; },
      [&options] { return options.ddp.bucket_cap_mb; }));
  program.add("ddp.find_unused_parameters", options.ddp.find_unused_parameters,
              "find in each step the parameters that it does not use");
  program.add("ddp.static_graph", options.ddp.static_graph, "each step uses the same parameters");
  program.add("ddp.check_replicas_every", options.ddp.check_replicas_every,
              "steps between comparisons of the ranks' parameters; 0: never");
  program.add(reshard_option(options.fully_shard.reshard_after_forward));
  program.add("fully_shard.hybrid_shard", options.fully_shard.hybrid_shard, kHybridShard,
              "replicas: none, shard_in_machines: each machine has one, or replicate_in_machines");
}

}  // namespace

void add_trainer_options(ProgramOptions& program, TrainerOptions& options) {
  program.set_group("Training");
  program.add("max_duration", options.max_duration,
              "length of the run: 10ep epochs, 100ba steps, 5000sp samples or 90sec");
  program.add("strategy", options.strategy, kStrategy,
              "ddp, or fully_shard: each rank holds a shard of the model");
  program.add("batch_size", options.batch_size, "samples per batch on each rank");
  program.add("split_batches", options.split_batches,
              "batch_size is the global batch, divided over the ranks");
  program.add("logical_shards", options.logical_shards,
              "shards of a step, for the same bits on any number of ranks; 0: none");
  program.add("compute_threads", options.compute_threads,
              "with logical_shards: threads of each rank's operators");
  program.add("allow_kernel_differences", options.allow_kernel_differences,
              "with logical_shards: warn of ranks whose kernels may round differently, instead of "
              "refusing them");
  program.add("workers", options.workers, "threads that load batches in advance");
  program.add("precision", options.precision, kPrecision,
              "fp32, bf16 or fp16; Lightning's 32-true, bf16-mixed and 16-mixed are the same");
  program.add("gradient_accumulation_steps", options.gradient_accumulation_steps,
              "batches per optimizer step");
  program.add("gradient_clip_val", options.gradient_clip_val,
              "largest norm or value of gradients; 0: no clipping");
  program.add("gradient_clip_algorithm", options.gradient_clip_algorithm, kClip, "norm or value");
  program.add("non_finite", options.non_finite, kNonFinite,
              "action on gradients that are not finite: ignore, report, skip or stop");
  program.add("deterministic", options.deterministic,
              "use deterministic operators only; others fail");
  program.add("seed", options.seed, "seed of random numbers and of the order of samples");

  program.set_group("Validation, limits");
  program.add("val_check_interval", options.val_check_interval,
              "interval between validations, e.g. 1ep or 100ba; empty: no validation");
  program.add("limit_train_batches", options.limit_train_batches,
              "training batches per epoch on each rank; 0: all");
  program.add("limit_val_batches", options.limit_val_batches,
              "batches per validation on each rank; 0: all");
  program.add("limit_test_batches", options.limit_test_batches,
              "batches per test on each rank; 0: all");
  program.add("limit_predict_batches", options.limit_predict_batches,
              "batches per prediction on each rank; 0: all");
  program.add("overfit_batches", options.overfit_batches,
              "train on the first N batches only; 0: on all");
  program.add("fast_dev_run", options.fast_dev_run,
              "smoke test: N batches, no snapshots or logs; 0: off");

  program.set_group("Snapshots, metrics, recovery");
  program.add("directory", options.directory, "directory of snapshots, metrics and sample logs");
  program.add("resume", options.resume, "resume from the newest snapshot in the directory");
  program.add("save_interval", options.save_interval,
              "interval between snapshots, e.g. 1ep or 100ba; empty: only at the end");
  program.add("keep_last", options.keep_last, "number of newest snapshots to keep, at least 2");
  program.add("asynchronous_saves", options.asynchronous_saves,
              "write snapshots in the background");
  program.add("sharded_saves", options.sharded_saves, "each rank writes a shard of a snapshot");
  program.add("log_every_n_steps", options.log_every_n_steps,
              "steps between logs of metrics, which are means over them");
  program.add("logger", options.logger, kLogger,
              "tensorboard, csv or tensorboard,csv, in addition to metrics.jsonl");
  program.add("trace", options.trace, "steps to trace on all ranks: 10:13 is 10, 11 and 12");
  program.add("profiler", options.profiler, kProfiler,
              "simple: log the time of each part of a step");
  program.add("recover", options.recover,
              "survive failed ranks under lockstep run --max-restarts=N");
  program.add("memory_every", options.memory_every,
              "steps between copies of the state in memory that the launcher keeps; 0: none");
  program.add("check_replicas_every", options.check_replicas_every,
              "steps between comparisons of the ranks' parameters; 0: never");
  program.add("log_samples", options.log_samples,
              "log the samples of each rank, for lockstep audit");
  program.add("log_hashes_every", options.log_hashes_every,
              "with logical_shards: steps between logs of hashes, for lockstep replay; 0: none");
  program.add(
      {.name = "quiet",
       .help = "no progress bar",
       .set =
           [&options](const std::string& text) {
             if (text != "true" && text != "false") return std::string("must be true or false");
             options.enable_progress_bar = text == "false";
             return std::string();
           },
       .get = [&options] { return std::string(options.enable_progress_bar ? "false" : "true"); },
       .kind = ProgramOption::Kind::kFlag});
  add_ranks(program, options);
  program.set_group("Options");
}

}  // namespace lockstep
