#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/train/callback.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep::inline internal {

class HashLog;

/// The absolute path of a run's directory.
std::string absolute_directory(const std::string& directory);

/// Logs hashes of parameters and buffers (XXH3) at an interval of steps, on rank 0, to hashes.jsonl
/// in the run's directory. With a ReplayRequest for that directory it ends the process of each rank
/// after the step to replay.
/// Errors: SystemError on rank 0.
class HashLogger : public Callback {
 public:
  explicit HashLogger(const TrainerOptions& options);
  ~HashLogger() override;
  void on_train_batch_end(TrainerState& state) override;

 private:
  void log_hashes(const TrainerState& state);

  const std::int64_t every_;
  const int logical_shards_;
  const std::string directory_;   ///< absolute
  std::int64_t last_step_ = -1;   ///< of a replay
  std::unique_ptr<HashLog> log_;  ///< of rank 0
};

}  // namespace lockstep::inline internal
