#include "lockstep/train/internal/hash_logger.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/ddp/internal/fingerprint.h"
#include "lockstep/ddp/internal/replica_state.h"
#include "lockstep/record/internal/hash_log.h"
#include "lockstep/record/internal/replay_request.h"
#include "lockstep/train/accelerator.h"
#include "lockstep/train/internal/kernel_fingerprint.h"
#include "lockstep/train/trainer_loop.h"

namespace lockstep {
inline namespace internal {
namespace {

TensorHashes hashes_of(const torch::nn::Module& module) {
  const ReplicaState state(module, {});
  TensorHashes hashes;
  for (const auto& tensors : {state.parameters(), state.buffers()}) {
    for (auto& [name, hash] : fingerprints_of(tensors)) hashes.push_back({std::move(name), hash});
  }
  return hashes;
}

}  // namespace

std::string absolute_directory(const std::string& directory) {
  return std::filesystem::weakly_canonical(std::filesystem::absolute(directory)).string();
}

HashLogger::HashLogger(const TrainerOptions& options)
    : every_(options.log_hashes_every),
      logical_shards_(options.logical_shards),
      directory_(absolute_directory(options.directory)) {
  const auto request = replay_request();
  if (request && absolute_directory(request->folder) == directory_) last_step_ = request->step;
}

HashLogger::~HashLogger() = default;

void HashLogger::on_train_batch_end(TrainerState& state) {
  const std::int64_t step = state.time.batches;
  if (state.accelerator.process_index() != 0) log_.reset();
  const bool is_due = step % every_ == 0 || step == last_step_;
  if (is_due && state.accelerator.process_index() == 0) log_hashes(state);
  if (step != last_step_) return;
  // What the program does behind the step is no part of it, and may write into the run's files.
  state.accelerator.wait_for_everyone();
  std::fflush(nullptr);
  std::_Exit(EXIT_SUCCESS);
}

void HashLogger::log_hashes(const TrainerState& state) {
  if (!log_) {
    log_ = std::make_unique<HashLog>(directory_);
    log_->begin({.step = state.time.batches - 1,
                 .ranks = state.accelerator.num_processes(),
                 .logical_shards = logical_shards_,
                 .kernels = kernel_fingerprint(),
                 .directory = directory_,
                 .program = describe_own_program()});
  }
  log_->add(state.time.batches, hashes_of(state.module));
}

}  // namespace internal

TrainerOptions internal::with_replay(TrainerOptions options) {
  const auto request = replay_request();
  if (!request || absolute_directory(options.directory) != request->directory) return options;
  if (options.logical_shards != request->logical_shards) {
    throw UsageError(concat("Trainer: logical_shards is ", options.logical_shards,
                            ", and the run to replay was made with ", request->logical_shards,
                            "; set the environment and the files of options as they were"));
  }
  options.directory = request->folder;
  options.resume = true;
  options.log_hashes_every = std::max(options.log_hashes_every, 1);
  return options;
}

}  // namespace lockstep
