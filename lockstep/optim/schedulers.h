#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/optim/schedulers/lr_scheduler.h>

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

// Learning rates by PyTorch's schedulers: names, defaults and numbers are those of
// torch.optim.lr_scheduler. All counts and milestones are in calls of step().

/// A scheduler of the learning rates of any torch::optim::Optimizer. As in Python the constructor
/// sets the first learning rates, and each step(), after the optimizer's, the next. A group's
/// initial learning rate is the one it had before its first scheduler: Lockstep's optimizers keep
/// it in their state, LibTorch's as long as they have a scheduler.
///
///   lockstep::CosineAnnealingLR scheduler(optimizer, {.t_max = steps});
///   …  optimizer.step();  scheduler.step();
///
/// Learning rates follow from the number of steps and the rates before, so that Accelerator and
/// Trainer can take steps back.
/// Threads: the training thread. Lifetime: the optimizer must outlive it.
/// Errors: UsageError from constructors for options out of range.
class LRScheduler : public torch::optim::LRScheduler {
 public:
  LRScheduler(const LRScheduler&) = delete;
  LRScheduler& operator=(const LRScheduler&) = delete;

  /// Steps made.
  std::int64_t last_epoch() const { return step_count_; }
  /// By parameter group, what the last step() or the constructor set.
  const std::vector<double>& get_last_lr() const { return last_lrs_; }

  /// What Python's scheduler.state_dict() of the same scheduler gives, for lockstep::save() and
  /// torch.load.
  virtual c10::IValue state_dict() const;
  /// Takes over such a state, of Python's scheduler too; learning rates stay, which come with the
  /// optimizer's state. All or nothing.
  /// Errors: UsageError naming what is missing or out of range, for the state of another scheduler,
  /// and of another number of parameter groups.
  virtual void load_state_dict(const c10::IValue& values);

 protected:
  using Field = std::pair<const char*, std::variant<double*, std::int64_t*, bool*>>;

  explicit LRScheduler(torch::optim::Optimizer& optimizer);

  /// Sets the first learning rates; the last act of each constructor.
  void begin();
  /// What state_dict() holds beside what all have.
  virtual std::vector<Field> fields() = 0;
  /// Throws a UsageError where fields() are out of range.
  virtual void check_options() const {}
  /// Sets fields(). All or nothing.
  void load_fields(const c10::IValue& values);
  /// The learning rate of a group before the first step, which is `lr` so far.
  virtual double first_lr(std::size_t group, double lr) = 0;
  /// After step number `epoch`.
  virtual double next_lr(std::size_t group, std::int64_t epoch, double lr) = 0;
  /// As first_lr, from the group's initial learning rate: where SequentialLR comes to it.
  virtual double restart_lr(std::size_t group) = 0;

  std::vector<double> get_lrs() override;
  torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  double base_lr(std::size_t group) const;

  /// Numbers that Python keeps in the optimizer's parameter groups, for all its schedulers.
  double group_value(std::size_t group, const char* name) const;
  void set_group_value(std::size_t group, const char* name, double value);

 private:
  friend class SchedulerList;
  struct GroupValues;

  std::vector<double> set_lrs(std::vector<double> lrs);
  void refuse_another_scheduler(const c10::IValue& values) const;

  torch::optim::Optimizer* optimizer_;
  std::shared_ptr<GroupValues> group_values_;
  std::vector<double> base_lrs_;
  std::vector<double> last_lrs_;

  friend class OneCycleLR;
};

struct StepLROptions {
  /// Calls of step() between two decays.
  std::int64_t step_size = 1;
  double gamma = 0.1;
};
/// LibTorch's own decays one step later than Python's; this one does not.
class StepLR : public LRScheduler {
 public:
  StepLR(torch::optim::Optimizer& optimizer, const StepLROptions& options);

 private:
  std::vector<Field> fields() override;
  double first_lr(std::size_t group, double lr) override;
  double next_lr(std::size_t group, std::int64_t epoch, double lr) override;
  double restart_lr(std::size_t group) override;
  void check_options() const override;
  StepLROptions options_;
};

struct MultiStepLROptions {
  /// One that occurs twice counts twice.
  std::vector<std::int64_t> milestones = {};
  double gamma = 0.1;
};
/// Its state dict has the milestones as a dict from milestone to count, where Python has a Counter,
/// which is read too.
class MultiStepLR : public LRScheduler {
 public:
  MultiStepLR(torch::optim::Optimizer& optimizer, const MultiStepLROptions& options);
  c10::IValue state_dict() const override;
  void load_state_dict(const c10::IValue& values) override;

 private:
  std::vector<Field> fields() override;
  double first_lr(std::size_t group, double lr) override;
  double next_lr(std::size_t group, std::int64_t epoch, double lr) override;
  double restart_lr(std::size_t group) override;
  MultiStepLROptions options_;
};

struct ConstantLROptions {
  double factor = 1.0 / 3;
  /// Calls of step() with the factor.
  std::int64_t total_iters = 5;
};
class ConstantLR : public LRScheduler {
 public:
  explicit ConstantLR(torch::optim::Optimizer& optimizer, const ConstantLROptions& options = {});

 private:
  std::vector<Field> fields() override;
  double first_lr(std::size_t group, double lr) override;
  double next_lr(std::size_t group, std::int64_t epoch, double lr) override;
  double restart_lr(std::size_t group) override;
  void check_options() const override;
  ConstantLROptions options_;
};

struct LinearLROptions {
  double start_factor = 1.0 / 3;
  double end_factor = 1.0;
  /// Calls of step() until end_factor.
  std::int64_t total_iters = 5;
};
/// Linear warm-up.
class LinearLR : public LRScheduler {
 public:
  explicit LinearLR(torch::optim::Optimizer& optimizer, const LinearLROptions& options = {});

 private:
  std::vector<Field> fields() override;
  double first_lr(std::size_t group, double lr) override;
  double next_lr(std::size_t group, std::int64_t epoch, double lr) override;
  double restart_lr(std::size_t group) override;
  void check_options() const override;
  LinearLROptions options_;
};

struct ExponentialLROptions {
  double gamma = 0.1;
};
class ExponentialLR : public LRScheduler {
 public:
  ExponentialLR(torch::optim::Optimizer& optimizer, const ExponentialLROptions& options);

 private:
  std::vector<Field> fields() override;
  double first_lr(std::size_t group, double lr) override;
  double next_lr(std::size_t group, std::int64_t epoch, double lr) override;
  double restart_lr(std::size_t group) override;
  ExponentialLROptions options_;
};

struct PolynomialLROptions {
  /// Calls of step() until 0.
  std::int64_t total_iters = 5;
  double power = 1.0;
};
class PolynomialLR : public LRScheduler {
 public:
  explicit PolynomialLR(torch::optim::Optimizer& optimizer,
                        const PolynomialLROptions& options = {});

 private:
  std::vector<Field> fields() override;
  double first_lr(std::size_t group, double lr) override;
  double next_lr(std::size_t group, std::int64_t epoch, double lr) override;
  double restart_lr(std::size_t group) override;
  void check_options() const override;
  PolynomialLROptions options_;
};

struct CosineAnnealingLROptions {
  /// Calls of step() until eta_min.
  std::int64_t t_max = 1;
  double eta_min = 0;
};
class CosineAnnealingLR : public LRScheduler {
 public:
  CosineAnnealingLR(torch::optim::Optimizer& optimizer, const CosineAnnealingLROptions& options);

 private:
  std::vector<Field> fields() override;
  double first_lr(std::size_t group, double lr) override;
  double next_lr(std::size_t group, std::int64_t epoch, double lr) override;
  double restart_lr(std::size_t group) override;
  void check_options() const override;
  CosineAnnealingLROptions options_;
};

struct CosineAnnealingWarmRestartsOptions {
  /// Calls of step() until the first restart; each later period is t_mult times as long.
  std::int64_t t_0 = 1;
  std::int64_t t_mult = 1;
  double eta_min = 0;
};
class CosineAnnealingWarmRestarts : public LRScheduler {
 public:
  CosineAnnealingWarmRestarts(torch::optim::Optimizer& optimizer,
                              const CosineAnnealingWarmRestartsOptions& options);
  c10::IValue state_dict() const override;
  /// Errors: UsageError also for a state that Python saved amid an epoch, by step(0.5).
  void load_state_dict(const c10::IValue& values) override;

 private:
  std::vector<Field> fields() override;
  double first_lr(std::size_t group, double lr) override;
  double next_lr(std::size_t group, std::int64_t epoch, double lr) override;
  double restart_lr(std::size_t group) override;
  void check_options() const override;
  CosineAnnealingWarmRestartsOptions options_;
};

enum class AnnealStrategy : std::uint8_t { kCos, kLinear };

struct OneCycleLROptions {
  /// One for all parameter groups, or one each.
  std::vector<double> max_lr = {};
  /// Calls of step() in all.
  std::int64_t total_steps = 0;
  /// Share of total_steps in which the learning rate rises, 0 to 1.
  double pct_start = 0.3;
  AnnealStrategy anneal_strategy = AnnealStrategy::kCos;
  /// Cycles the momentum, or the first of the betas, too.
  bool cycle_momentum = true;
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25.0;
  double final_div_factor = 1e4;
  bool three_phase = false;
};
/// Errors: UsageError from step() after total_steps; from the constructor where momentum is to be
/// cycled and the optimizer has neither momentum nor betas, and where a phase has no steps, for
/// which Python divides by zero: pct_start · total_steps is 1, or total_steps.
class OneCycleLR : public LRScheduler {
 public:
  OneCycleLR(torch::optim::Optimizer& optimizer, const OneCycleLROptions& options);
  c10::IValue state_dict() const override;
  void load_state_dict(const c10::IValue& values) override;

 private:
  struct Phase {
    double end_step;
    const char* start_lr;
    const char* end_lr;
    const char* start_momentum;
    const char* end_momentum;
  };
  static std::vector<Phase> phases_of(bool three_phase);
  void check_options() const override;
  std::vector<Field> fields() override;
  double first_lr(std::size_t group, double lr) override;
  double next_lr(std::size_t group, std::int64_t epoch, double lr) override;
  double restart_lr(std::size_t group) override;
  double anneal(double start, double end, double share) const;
  std::vector<Phase> phases_;
  std::int64_t total_steps_;
  std::optional<double> pct_start_;  ///< Empty after a state was loaded, which has none.
  AnnealStrategy strategy_;
  bool cycle_momentum_;
  bool use_beta1_ = false;
};

/// Schedulers that others drive. They may not be stepped by themselves.
class SchedulerList : public LRScheduler {
 public:
  c10::IValue state_dict() const override;
  void load_state_dict(const c10::IValue& values) override;

 protected:
  SchedulerList(const char* name, torch::optim::Optimizer& optimizer,
                std::vector<std::shared_ptr<LRScheduler>> schedulers);
  std::vector<Field> fields() override { return {}; }
  double first_lr(std::size_t group, double lr) override;
  double next_lr(std::size_t group, std::int64_t epoch, double lr) override;
  double restart_lr(std::size_t group) override;

  /// How many steps scheduler `i` has made after `epoch` of this one; -1: it has not begun.
  virtual std::int64_t epoch_of(std::size_t i, std::int64_t epoch) const = 0;
  void begin_one(std::size_t i);
  void restart_one(std::size_t i);
  void step_one(std::size_t i, std::int64_t epoch);
  std::vector<double> finish_step();
  std::size_t size() const { return schedulers_.size(); }

 private:
  const char* name_;
  std::vector<std::shared_ptr<LRScheduler>> schedulers_;
};

/// One scheduler after the other: scheduler i + 1 from step milestones[i] on, from the initial
/// learning rates. Not of SequentialLR or ChainedScheduler.
class SequentialLR : public SchedulerList {
 public:
  SequentialLR(torch::optim::Optimizer& optimizer,
               std::vector<std::shared_ptr<LRScheduler>> schedulers,
               std::vector<std::int64_t> milestones);
  c10::IValue state_dict() const override;
  void load_state_dict(const c10::IValue& values) override;

 private:
  std::vector<double> get_lrs() override;
  std::int64_t epoch_of(std::size_t i, std::int64_t epoch) const override;
  std::size_t active_at(std::int64_t epoch) const;
  std::int64_t start_of(std::size_t i) const { return i == 0 ? 0 : milestones_[i - 1]; }
  std::vector<std::int64_t> milestones_;
};

/// All schedulers in each step, one after the other.
class ChainedScheduler : public SchedulerList {
 public:
  ChainedScheduler(torch::optim::Optimizer& optimizer,
                   std::vector<std::shared_ptr<LRScheduler>> schedulers);

 private:
  std::vector<double> get_lrs() override;
  std::int64_t epoch_of(std::size_t i, std::int64_t epoch) const override;
};

struct ReduceLROnPlateauOptions {
  enum class Mode : std::uint8_t { kMin, kMax };
  enum class ThresholdMode : std::uint8_t { kRel, kAbs };
  Mode mode = Mode::kMin;
  double factor = 0.1;
  /// Calls of step() without improvement that do not reduce yet.
  std::int64_t patience = 10;
  double threshold = 1e-4;
  ThresholdMode threshold_mode = ThresholdMode::kRel;
  /// Calls of step() after a reduction that do not count as without improvement.
  std::int64_t cooldown = 0;
  /// One for all parameter groups, or one each.
  std::vector<double> min_lr = {0.0};
  double eps = 1e-8;
};

/// Reduces the learning rates when a metric has stopped improving. No LRScheduler, as its step
/// takes the metric, which must be the same on all ranks. Not prepared by Accelerator; what it has
/// counted is in tensors():
///   accelerator.register_for_checkpointing("plateau", plateau.tensors());
/// Threads, lifetime: as LRScheduler. Errors: UsageError for options out of range.
class ReduceLROnPlateau {
 public:
  explicit ReduceLROnPlateau(torch::optim::Optimizer& optimizer,
                             const ReduceLROnPlateauOptions& options = {});

  void step(double metric);
  const std::vector<double>& get_last_lr() const { return last_lrs_; }

  /// As LRScheduler's.
  c10::IValue state_dict() const;
  void load_state_dict(const c10::IValue& values);

  /// What steps change: a tensor that may be set in place.
  std::vector<std::pair<std::string, at::Tensor>> tensors() const { return {{"counts", counts_}}; }

 private:
  double& best() const;
  double& last_epoch() const;
  double& cooldown_counter() const;
  double& num_bad_epochs() const;
  bool is_better(double metric) const;
  void reduce();

  torch::optim::Optimizer* optimizer_;
  ReduceLROnPlateauOptions options_;
  std::vector<double> min_lrs_;
  std::vector<double> last_lrs_;
  at::Tensor counts_;  ///< float64 [4]: best, last_epoch, cooldown_counter, num_bad_epochs
};

}  // namespace lockstep
