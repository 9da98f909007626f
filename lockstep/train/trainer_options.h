#pragma once

#include <cstdint>
#include <string>

#include "lockstep/train/accelerator_options.h"
#include "lockstep/train/duration.h"
#include "lockstep/train/metrics.h"

namespace lockstep {

class ProgramOptions;

/// How TrainerOptions::gradient_clip_val clips gradients.
enum class GradientClipAlgorithm {
  kNorm,   ///< Scale all gradients together to a norm of at most gradient_clip_val.
  kValue,  ///< Clamp each element to [-gradient_clip_val, gradient_clip_val].
};

/// Which files of metrics a Trainer writes beside metrics.jsonl: see TensorBoardLogger, CsvLogger.
enum class MetricLogger { kNone, kTensorBoard, kCsv, kTensorBoardAndCsv };

/// Whether a Trainer measures the phases of its steps.
enum class Profiler {
  kNone,
  kSimple,  ///< Metrics contain the ms per step of each phase (StepTimer).
};

/// Options of Trainer. Names are those of lightning.Trainer, and of Composer for lengths ("10ep",
/// "100ba": see Duration); docs/trainer.md lists the exceptions. They must be equal on all ranks.
struct TrainerOptions {
  /// Length of the training run, all runs before a resume included. Lengths in seconds, here and
  /// below, are compared when metrics are logged.
  std::string max_duration = "10ep";
  /// What each rank holds of the model: see AcceleratorOptions. On the command line: ddp or
  /// fully_shard.
  Strategy strategy = Strategy::kDdp;
  /// Samples per batch on each rank; with split_batches on all ranks together.
  std::int64_t batch_size = 32;
  bool split_batches = false;
  /// Threads that load batches ahead.
  std::int64_t workers = 0;
  /// On the command line: fp32, bf16 or fp16; Lightning's 32-true, bf16-mixed and 16-mixed too.
  Precision precision = Precision::kFloat32;
  /// Same bits on any number of ranks: these three are as in AcceleratorOptions. batch_size is then
  /// that of a shard. Metrics have the same bits too, unless a rank is lost.
  int logical_shards = 0;
  int compute_threads = 1;
  bool allow_kernel_differences = false;
  /// Batches per rank and optimizer step.
  int gradient_accumulation_steps = 1;
  /// 0: do not clip gradients.
  double gradient_clip_val = 0;
  GradientClipAlgorithm gradient_clip_algorithm = GradientClipAlgorithm::kNorm;
  /// Length of training between validations; empty: no validation.
  std::string val_check_interval = "1ep";
  /// Batches per rank; 0: all.
  std::int64_t limit_train_batches = 0;
  std::int64_t limit_val_batches = 0;
  std::int64_t limit_test_batches = 0;
  std::int64_t limit_predict_batches = 0;
  /// Train on the first so many batches only, the same in each epoch; 0: on all.
  std::int64_t overfit_batches = 0;
  /// Smoke test: run only so many batches of training and validation, without snapshots and logs.
  /// 0: off.
  std::int64_t fast_dev_run = 0;
  /// Steps between logs of training metrics, which are means over these steps.
  std::int64_t log_every_n_steps = 50;
  /// Allow only operators that give the same bits in every run; others throw.
  bool deterministic = false;
  /// What to do with gradients that are not finite. A loss that is not finite ends the run with an
  /// Error that names rank and step, before metrics or a snapshot are written; kReport and kSkip
  /// allow it.
  NonFinite non_finite = NonFinite::kIgnore;
  /// Seeds the order of samples and, together with the rank, each rank's random numbers.
  std::uint64_t seed = 0;
  bool enable_progress_bar = true;
  /// Files of metrics beside metrics.jsonl.
  MetricLogger logger = MetricLogger::kNone;
  /// Steps that all ranks trace: "10:13" is 10, 11 and 12 (see TraceCallback). Empty: none.
  std::string trace = "";
  Profiler profiler = Profiler::kNone;
  /// Directory of the training run, which `lockstep report` shows: snapshots (snapshots/), metrics
  /// (metrics.jsonl), runs (runs.jsonl), samples (data/) and hashes (hashes.jsonl).
  std::string directory = "runs/default";
  /// Resume from the newest snapshot in the directory, if there is one. False: it is an error if
  /// there is one.
  bool resume = true;
  /// Length of training between snapshots; the end of the run always writes one. Empty: only then.
  std::string save_interval = "1ep";
  /// Number of newest snapshots to keep; at least 2, so that one may be damaged.
  int keep_last = 2;
  /// Write snapshots while training continues, and a shard per rank: see AcceleratorOptions.
  bool asynchronous_saves = false;
  bool sharded_saves = false;
  /// Survive failed ranks under `lockstep run --max-restarts=N`: these three are as in
  /// AcceleratorOptions.
  bool recover = true;
  int memory_every = 0;
  int check_replicas_every = 0;
  /// Keep one copy of parameters and optimizer state per machine: see AcceleratorOptions.
  bool one_copy_per_machine = false;
  /// Log each rank's samples, for `lockstep audit`.
  bool log_samples = false;
  /// With logical_shards: steps between logged hashes of all parameters and buffers, for `lockstep
  /// replay` (docs/guides/same-bits.md). 0: never.
  int log_hashes_every = 0;
  /// Processes that fit() starts on this machine if no launcher has started this one.
  int devices = 1;
  /// Number of machines that a launcher must have started this job on; 0: any.
  int num_nodes = 0;
  InitOptions init = {};
  DistributedDataParallelOptions ddp = {};
  FullyShardOptions fully_shard = {};
};

/// Adds a Trainer's options to those of the program, under their own names: --max-duration=20ep,
/// max_duration = "20ep" in a file, LOCKSTEP_TRAINER_MAX_DURATION. Of `init` and `ddp` it adds
/// plain values, such as ddp.bucket_cap_mb. Also adds --quiet.
/// Lifetime: `options` must outlive `program`.
void add_trainer_options(ProgramOptions& program, TrainerOptions& options);

/// Why Trainer::fit returned.
enum class FitEnd {
  kDone,       ///< max_duration is reached
  kStopped,    ///< a callback ended the run
  kPreempted,  ///< preempted; all ranks have saved: exit with kExitPreempted
};

/// Result of Trainer::fit.
struct FitResult {
  FitEnd end = FitEnd::kDone;
  std::string reason{};  ///< with kStopped: a text for people
  TrainingTime time{};
  Metrics metrics{};  ///< the newest value of each metric
};

/// Options of Trainer::validate, test and predict.
struct EvaluateOptions {
  /// Weights to load: "last" for the newest snapshot, "best" for what a ModelCheckpoint has kept,
  /// or the path of a snapshot or a state dict, also Python's. Empty: as configure_model() creates
  /// them.
  std::string ckpt_path = "last";
};

}  // namespace lockstep
