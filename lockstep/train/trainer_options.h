#pragma once

#include <cstdint>
#include <string>

#include "lockstep/train/accelerator_options.h"
#include "lockstep/train/duration.h"
#include "lockstep/train/metrics.h"

namespace lockstep {

class ProgramOptions;

enum class GradientClipAlgorithm {
  kNorm,   ///< The norm of all gradients together is at most gradient_clip_val.
  kValue,  ///< Each element is within gradient_clip_val of 0.
};

enum class MetricLogger { kNone, kTensorBoard, kCsv, kTensorBoardAndCsv };

enum class Profiler {
  kNone,
  kSimple,  ///< Metrics say how many ms of a step go into which part (StepTimer).
};

/// Names are those of lightning.Trainer, and of Composer for lengths ("10ep", "100ba": see
/// Duration); docs/trainer.md lists the exceptions. All ranks must give the same.
struct TrainerOptions {
  /// How long to train in all, what was trained before a resume included. Seconds, here and below,
  /// are looked at when metrics are logged.
  std::string max_duration = "10ep";
  /// Samples a batch, on each rank; with split_batches those of all ranks.
  std::int64_t batch_size = 32;
  bool split_batches = false;
  /// Threads that read ahead.
  std::int64_t workers = 0;
  /// On the command line: 32-true, 16-mixed or bf16-mixed.
  Precision precision = Precision::kFloat32;
  /// The same bits on any number of ranks: see AcceleratorOptions, which has all three. batch_size
  /// is then that of a shard. Metrics have the same bits, too, where no rank is lost.
  int logical_shards = 0;
  int compute_threads = 1;
  bool allow_kernel_differences = false;
  /// Batches of each rank that make one step.
  int gradient_accumulation_steps = 1;
  /// 0: gradients are not clipped.
  double gradient_clip_val = 0;
  GradientClipAlgorithm gradient_clip_algorithm = GradientClipAlgorithm::kNorm;
  /// How long to train between validations; empty: no validation.
  std::string val_check_interval = "1ep";
  /// Batches of each rank; 0: all.
  std::int64_t limit_train_batches = 0;
  std::int64_t limit_val_batches = 0;
  std::int64_t limit_test_batches = 0;
  std::int64_t limit_predict_batches = 0;
  /// Train on the first so many batches alone, the same in each epoch; 0: on all.
  std::int64_t overfit_batches = 0;
  /// Only so many batches of training and validation, without snapshots or logs: does it run?
  std::int64_t fast_dev_run = 0;
  /// Metrics of training are means over so many steps.
  std::int64_t log_every_n_steps = 50;
  /// Only operators that give the same bits in every run; an Error for others.
  bool deterministic = false;
  /// What becomes of each step whose gradients are not finite. Whatever it is, a loss that is not
  /// finite ends the training with an Error that names rank and step, before metrics or a snapshot
  /// are written; with kReport and kSkip it does not.
  NonFinite non_finite = NonFinite::kIgnore;
  /// Seeds the order of samples and, with its rank, the random numbers of each rank.
  std::uint64_t seed = 0;
  bool enable_progress_bar = true;
  /// What writes metrics beside metrics.jsonl.
  MetricLogger logger = MetricLogger::kNone;
  /// Steps that all ranks trace, "10:13" for 10, 11 and 12 (see TraceCallback); empty: none.
  std::string trace = "";
  Profiler profiler = Profiler::kNone;
  /// Directory of the training run, which `lockstep report` shows: snapshots (snapshots/), metrics
  /// (metrics.jsonl), runs (runs.jsonl), samples (data/) and hashes (hashes.jsonl).
  std::string directory = "runs/default";
  /// Go on from the newest snapshot there, where there is one; otherwise there must be none.
  bool resume = true;
  /// When a snapshot is written, beside the end of the training; empty: only then.
  std::string save_interval = "1ep";
  /// How many of the newest snapshots to keep; at least 2, so that one can be damaged.
  int keep_last = 2;
  /// Snapshots are written while the training goes on, and by each rank a share: see
  /// AcceleratorOptions.
  bool asynchronous_saves = false;
  bool sharded_saves = false;
  /// Under `lockstep run --max-restarts=N` fit() survives failed ranks: see AcceleratorOptions,
  /// which has all three.
  bool recover = true;
  int memory_every = 0;
  int check_replicas_every = 0;
  /// Parameters and optimizer state once on a machine: see AcceleratorOptions.
  bool one_copy_per_machine = false;
  /// Log which samples each rank was given, for `lockstep audit`.
  bool log_samples = false;
  /// With logical_shards: log hashes of all parameters and buffers after so many steps, for
  /// `lockstep replay`: docs/guides/same-bits.md. 0: never.
  int log_hashes_every = 0;
  /// Processes to start on this machine where no launcher has started this one.
  int devices = 1;
  /// Machines: a launcher must have started this process on as many; 0: any number.
  int num_nodes = 0;
  InitOptions init = {};
  DistributedDataParallelOptions ddp = {};
};

/// Makes a Trainer's options those of the program, under their own names: --max-duration=20ep,
/// max_duration = "20ep" in a file, LOCKSTEP_TRAINER_MAX_DURATION; of `init` and `ddp` what is a
/// plain value, as ddp.bucket_cap_mb. And --quiet. `options` must outlive `program`.
void add_trainer_options(ProgramOptions& program, TrainerOptions& options);

/// How a fit ended.
enum class FitEnd {
  kDone,       ///< as long as it was to be
  kStopped,    ///< a callback has ended it
  kPreempted,  ///< preempted, all ranks have saved: end with kExitPreempted
};

struct FitResult {
  FitEnd end = FitEnd::kDone;
  std::string reason{};  ///< of a stop, for people
  TrainingTime time{};
  Metrics metrics{};  ///< the newest of each
};

struct EvaluateOptions {
  /// Whose weights: "last" of the training's snapshots, "best" that a
  /// ModelCheckpoint has kept there, or a file of a snapshot or of a state dict, Python's too.
  /// Empty: as configure_model makes them.
  std::string ckpt_path = "last";
};

}  // namespace lockstep
