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

/// What callbacks see of a training run, and may change. Lives as long as Trainer::fit.
struct TrainerState {
  Accelerator& accelerator;
  torch::nn::Module& module;
  torch::optim::Optimizer& optimizer;
  const std::string& directory;
  /// fast_dev_run: nothing is written.
  bool is_dev_run = false;

  TrainingTime time{};
  std::int64_t epoch = 0;  ///< the one under way, from 0
  /// The newest step was left out, on all ranks, for gradients that are not finite.
  bool step_was_skipped = false;
  /// The newest value of each metric, the same on all ranks.
  Metrics metrics{};
  /// Set by a callback on all ranks: training ends after this batch. The text is for people.
  std::string stop_reason{};
  /// At the end: preempted, and saved.
  bool is_preempted = false;
  /// There is validation data, and a time for it.
  bool validates = false;
  /// Set by a callback on all ranks: a snapshot is written after this batch.
  bool save_requested = false;

  bool is_main() const;
  double learning_rate() const;
};

/// What a program or a part of it does at certain points of Trainer::fit: on all ranks, on the
/// training thread. Names are those of lightning.Callback.
class Callback {
 public:
  virtual ~Callback() = default;

  virtual void on_fit_start(TrainerState&) {}
  /// The training goes on from a snapshot, whose state is in place. A stop_reason that is set here
  /// ends it before a step is made.
  virtual void on_load_checkpoint(TrainerState&) {}
  virtual void on_train_epoch_start(TrainerState&) {}
  /// After each step of the optimizer.
  virtual void on_train_batch_end(TrainerState&) {}
  virtual void on_train_epoch_end(TrainerState&) {}
  virtual void on_validation_start(TrainerState&) {}
  /// `metrics` are those of the validation. In the reverse order of on_validation_start: what one
  /// has put in place for the validation is there for those that were added after it.
  virtual void on_validation_end(TrainerState&, const Metrics&) {}
  /// Where this rank is preempted while ranks are replaced: a validation that may have begun does
  /// not end. Takes back what on_validation_start has changed, as a snapshot is written next.
  virtual void on_validation_interrupted(TrainerState&) {}
  /// New means of training metrics, to which it may add.
  virtual void on_log(TrainerState&, Metrics&) {}
  /// A snapshot has been written, with asynchronous_saves taken.
  virtual void on_save_checkpoint(TrainerState&) {}
  /// What has ended the fit.
  virtual void on_exception(TrainerState&, const std::exception&) {}
  /// In a rank that is preempted while ranks are replaced only if it is rank 0: `lockstep scale`
  /// ends a rank in the same way, and the training run continues.
  virtual void on_fit_end(TrainerState&) {}
};

/// Callbacks as functions: LambdaCallback({.on_train_epoch_end = [](TrainerState& state) {…}}).
class LambdaCallback : public Callback {
 public:
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
