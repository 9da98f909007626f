#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "lockstep/profile/trace.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/step_range.h"

namespace lockstep {

struct TraceCallbackOptions {
  /// "10:13": steps 10, 11 and 12, from 1, as they are counted in metrics; of all runs together.
  std::string steps = "10:13";
  /// Note the shapes of operators' inputs.
  bool record_shapes = false;
};

/// Traces some steps of a Trainer on all ranks, and makes one timeline of it, for
/// ui.perfetto.dev: traces/steps-10-12.json of the training's directory, beside those of the ranks
/// (profile/trace.h, record/internal/trace_merge.h). Some barriers come with it, by which clocks
/// are compared. Where directories of machines are their own, rank 0 says that its timeline lacks
/// ranks and how to merge them. A run that goes on behind these steps traces nothing; one that ends
/// between them has a timeline of those that it made.
///
/// A rank whose trace cannot be written fails on all ranks, named. Errors: UsageError for other
/// steps and where a profiler runs already; SystemError; PeerFailed; as Work::wait.
class TraceCallback : public Callback {
 public:
  explicit TraceCallback(const TraceCallbackOptions& options = {});
  void on_train_epoch_start(TrainerState& state) override;
  void on_train_batch_end(TrainerState& state) override;
  void on_fit_end(TrainerState& state) override;
  void on_exception(TrainerState& state, const std::exception& error) override;

 private:
  void begin_where_due(TrainerState& state);
  void finish(TrainerState& state);

  TraceCallbackOptions options_;
  StepRange steps_;
  std::filesystem::path path_;
  /// While steps are traced.
  std::shared_ptr<Trace> trace_;
};

}  // namespace lockstep
