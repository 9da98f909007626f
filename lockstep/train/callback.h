#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <utility>

#include "lockstep/train/duration.h"
#include "lockstep/train/metrics.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep {

class Accelerator;

/// What callbacks see of a training run, and may change.
/// Lifetime: as long as Trainer::fit runs.
struct TrainerState {
  Accelerator& accelerator;
  torch::nn::Module& module;
  torch::optim::Optimizer& optimizer;
  const std::string& directory;
  /// fast_dev_run is on: write nothing.
  bool is_dev_run = false;

  TrainingTime time{};
  std::int64_t epoch = 0;  ///< the current epoch, from 0
  /// All ranks skipped the newest step because its gradients were not finite.
  bool step_was_skipped = false;
  /// The newest value of each metric, equal on all ranks.
  Metrics metrics{};
  /// Set it on all ranks to end the training run after this batch. The text is for people.
  std::string stop_reason{};
  /// In on_fit_end: the run was preempted and has saved.
  bool is_preempted = false;
  /// There is validation data, and val_check_interval is not empty.
  bool has_validation = false;
  /// Set it on all ranks to write a snapshot after this batch.
  bool save_requested = false;

  /// Whether this process is rank 0.
  bool is_main() const;
  /// The learning rate of the first parameter group.
  double learning_rate() const;
};

/// Hooks that run at certain points of Trainer::fit, on all ranks. Names are those of
/// lightning.Callback.
/// Threads: they run on the training thread.
class Callback {
 public:
  virtual ~Callback() = default;

  /// Runs first, before a snapshot is loaded.
  virtual void on_fit_start(TrainerState&) {}
  /// Runs after the state of a snapshot was loaded. A stop_reason set here ends the run before its
  /// first step.
  virtual void on_load_checkpoint(TrainerState&) {}
  /// Runs before the first batch of an epoch, and after a resume before the first batch that is
  /// left of it.
  virtual void on_train_epoch_start(TrainerState&) {}
  /// Runs after each optimizer step.
  virtual void on_train_batch_end(TrainerState&) {}
  /// Runs after the last step of an epoch, when its metrics are logged.
  virtual void on_train_epoch_end(TrainerState&) {}
  /// Runs before each validation.
  virtual void on_validation_start(TrainerState&) {}
  /// Runs after each validation, with its metrics. Callbacks run in reverse order of
  /// on_validation_start, so what one has put in place for the validation is still there for those
  /// that were added after it.
  virtual void on_validation_end(TrainerState&, const Metrics&) {}
  /// Runs if this rank is preempted while ranks are replaced; a validation that has begun does not
  /// end. Undo what on_validation_start changed, since a snapshot is written next.
  virtual void on_validation_interrupted(TrainerState&) {}
  /// Runs when new means of training metrics are logged; may add metrics.
  virtual void on_log(TrainerState&, Metrics&) {}
  /// Runs after a snapshot was written, or with asynchronous_saves after the state was copied.
  virtual void on_save_checkpoint(TrainerState&) {}
  /// Runs after an error that ends the fit.
  virtual void on_exception(TrainerState&, const std::exception&) {}
  /// Runs at the end of the fit. If a rank is preempted while ranks are replaced, it runs only on
  /// rank 0: `lockstep scale` removes a rank in the same way, and the training run continues.
  virtual void on_fit_end(TrainerState&) {}
};

/// A callback made of functions: LambdaCallback({.on_train_epoch_end = [](TrainerState& state)
/// {…}}).
class LambdaCallback : public Callback {
 public:
  /// The functions, by hook; an empty one does nothing.
  struct Functions {
    std::function<void(TrainerState&)> on_fit_start = {};
    std::function<void(TrainerState&)> on_train_epoch_start = {};
    std::function<void(TrainerState&)> on_train_batch_end = {};
    std::function<void(TrainerState&)> on_train_epoch_end = {};
    std::function<void(TrainerState&, const Metrics&)> on_validation_end = {};
    std::function<void(TrainerState&, Metrics&)> on_log = {};
    std::function<void(TrainerState&)> on_fit_end = {};
  };
  explicit LambdaCallback(Functions functions) : functions_(std::move(functions)) {}

  void on_fit_start(TrainerState& state) override { call(functions_.on_fit_start, state); }
  void on_train_epoch_start(TrainerState& state) override {
    call(functions_.on_train_epoch_start, state);
  }
  void on_train_batch_end(TrainerState& state) override {
    call(functions_.on_train_batch_end, state);
  }
  void on_train_epoch_end(TrainerState& state) override {
    call(functions_.on_train_epoch_end, state);
  }
  void on_validation_end(TrainerState& state, const Metrics& metrics) override {
    call(functions_.on_validation_end, state, metrics);
  }
  void on_log(TrainerState& state, Metrics& metrics) override {
    call(functions_.on_log, state, metrics);
  }
  void on_fit_end(TrainerState& state) override { call(functions_.on_fit_end, state); }

 private:
  template <class Function, class... Arguments>
  static void call(const Function& function, Arguments&... arguments) {
    if (function) function(arguments...);
  }

  Functions functions_;
};

}  // namespace lockstep
