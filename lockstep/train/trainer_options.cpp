#include "lockstep/train/trainer_options.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/zeros.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/profile/step_timer.h"
#include "lockstep/recovery/internal/step_seed.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/internal/hash_logger.h"
#include "lockstep/train/loggers.h"
#include "lockstep/train/trainer_loop.h"

namespace lockstep {
namespace {

// 0: none.
std::int64_t epoch_limit(const TrainerOptions& options) {
  if (options.fast_dev_run > 0) return options.fast_dev_run;
  return options.overfit_batches > 0 ? options.overfit_batches : options.limit_train_batches;
}

void check_least(const char* name, double value, double least) {
  if (value >= least) return;
  throw UsageError(concat("Trainer: ", name, " is ", value, ", it must be at least ", least));
}

}  // namespace

void internal::check(const TrainerOptions& options) {
  if (!Duration::parse(options.max_duration, "Trainer: max_duration")) {
    throw UsageError("Trainer: max_duration is empty; say how long to train, as in 10ep");
  }
  Duration::parse(options.val_check_interval, "Trainer: val_check_interval");
  Duration::parse(options.save_interval, "Trainer: save_interval");
  callbacks_of(options);
  if (options.directory.empty()) {
    throw UsageError("Trainer: directory is empty; name a folder, as runs/digits");
  }
  check_least("batch_size", static_cast<double>(options.batch_size), 1);
  check_least("workers", static_cast<double>(options.workers), 0);
  check_least("gradient_accumulation_steps", options.gradient_accumulation_steps, 1);
  check_least("gradient_clip_val", options.gradient_clip_val, 0);
  check_least("limit_train_batches", static_cast<double>(options.limit_train_batches), 0);
  check_least("limit_val_batches", static_cast<double>(options.limit_val_batches), 0);
  check_least("limit_test_batches", static_cast<double>(options.limit_test_batches), 0);
  check_least("limit_predict_batches", static_cast<double>(options.limit_predict_batches), 0);
  check_least("overfit_batches", static_cast<double>(options.overfit_batches), 0);
  check_least("fast_dev_run", static_cast<double>(options.fast_dev_run), 0);
  check_least("log_every_n_steps", static_cast<double>(options.log_every_n_steps), 1);
  check_least("log_hashes_every", options.log_hashes_every, 0);
  if (options.log_hashes_every > 0 && options.logical_shards == 0) {
    throw UsageError(
        "Trainer: log_hashes_every needs logical_shards; without it the bits depend on the number "
        "of ranks");
  }
  check_least("keep_last", options.keep_last, 2);
  check_least("devices", options.devices, 1);
  check_least("num_nodes", options.num_nodes, 0);
}

std::vector<std::shared_ptr<Callback>> internal::callbacks_of(const TrainerOptions& options) {
  std::vector<std::shared_ptr<Callback>> callbacks;
  if (!options.trace.empty()) {
    const std::string word = "steps=";  // May stand before them.
    const std::size_t from = options.trace.starts_with(word) ? word.size() : 0;
    callbacks.push_back(
        std::make_shared<TraceCallback>(TraceCallbackOptions{.steps = options.trace.substr(from)}));
  }
  const MetricLogger logger = options.logger;
  if (logger == MetricLogger::kTensorBoard || logger == MetricLogger::kTensorBoardAndCsv) {
    callbacks.push_back(std::make_shared<TensorBoardLogger>());
  }
  if (logger == MetricLogger::kCsv || logger == MetricLogger::kTensorBoardAndCsv) {
    callbacks.push_back(std::make_shared<CsvLogger>());
  }
  callbacks.push_back(std::make_shared<RunLogger>());
  if (options.log_hashes_every > 0 && options.fast_dev_run == 0) {
    callbacks.push_back(std::make_shared<HashLogger>(options));
  }
  return callbacks;
}

AcceleratorOptions internal::accelerator_options(const TrainerOptions& options) {
  const bool writes = options.fast_dev_run == 0;
  DistributedDataParallelOptions ddp = options.ddp;
  if (options.profiler == Profiler::kSimple && !ddp.step_timer) {
    ddp.step_timer = std::make_shared<StepTimer>();
  }
  return {.strategy = options.strategy,
          .precision = options.precision,
          .gradient_accumulation_steps = options.gradient_accumulation_steps,
          .split_batches = options.split_batches,
          .logical_shards = options.logical_shards,
          .compute_threads = options.compute_threads,
          .allow_kernel_differences = options.allow_kernel_differences,
          .seed = options.seed,
          .non_finite = options.non_finite,
          .directory = options.directory + "/snapshots",
          .keep_last = options.keep_last,
          .asynchronous_saves = options.asynchronous_saves,
          .sharded_saves = options.sharded_saves,
          .sample_log_directory = options.log_samples && writes ? options.directory + "/data" : "",
          .recover = options.recover,
          .memory_every = options.memory_every,
          .check_replicas_every = options.check_replicas_every,
          .one_copy_per_machine = options.one_copy_per_machine,
          .init = options.init,
          .ddp = std::move(ddp),
          .fully_shard = options.fully_shard};
}

DataLoaderOptions internal::train_loader_options(const TrainerOptions& options) {
  return {.batch_size = options.batch_size,
          .shuffle = options.overfit_batches == 0,
          .limit_batches = epoch_limit(options),
          .workers = options.workers};
}

DataLoaderOptions internal::evaluation_loader_options(const TrainerOptions& options,
                                                      std::int64_t limit,
                                                      const Accelerator& accelerator) {
  return {.batch_size = options.batch_size,
          .split_batches = options.split_batches,
          .shuffle = false,
          .limit_batches = options.fast_dev_run > 0 ? options.fast_dev_run : limit,
          .workers = options.workers,
          .process_group = accelerator.process_group(),
          .device = accelerator.device()};
}

void internal::seed_evaluation(LoaderPosition& position, const TrainerOptions& options) {
  if (options.logical_shards == 0) return;
  // Other numbers than those of the training's shards.
  constexpr std::uint64_t kOfEvaluations = 0x9E3779B97F4A7C15U;
  position.set_shard_visit([seed = options.seed ^ kOfEvaluations](const ShardPlace& place) {
    seed_step(seed, place.shard, place.batch, at::kCPU);
  });
}

void internal::seed_ranks(const TrainerOptions& options, int rank) {
  at::manual_seed(options.seed + static_cast<std::uint64_t>(rank));
  if (options.deterministic) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setBenchmarkCuDNN(false);
  }
}

}  // namespace lockstep
