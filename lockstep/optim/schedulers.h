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

// PyTorch's learning-rate schedulers: names, defaults and values are those of
// torch.optim.lr_scheduler. All counts and milestones are numbers of step() calls.

/// Base class of the schedulers: sets the learning rates of any torch::optim::Optimizer. As in
/// Python the constructor sets the first learning rates, and each step(), after the optimizer's,
/// the next. A group's initial learning rate is the one that it had before its first scheduler.
/// Lockstep's optimizers keep it in their state, LibTorch's while they have a scheduler.
///
///     lockstep::CosineAnnealingLR scheduler(optimizer, {.t_max = steps});
///     …  optimizer.step();  scheduler.step();
///
/// Learning rates depend only on the number of steps and the rates before, so Accelerator and
/// Trainer can roll steps back.
/// Threads: call from the training thread.
/// Lifetime: the optimizer must outlive it.
/// Errors: UsageError from constructors for options out of range.
class LRScheduler : public torch::optim::LRScheduler {
 public:
  LRScheduler(const LRScheduler&) = delete;
  LRScheduler& operator=(const LRScheduler&) = delete;

  /// Number of step() calls.
  std::int64_t last_epoch() const { return step_count_; }
  /// Learning rates of all parameter groups, as the constructor or the last step() set them.
  const std::vector<double>& get_last_lr() const { return last_lrs_; }

  /// The state dict of the same scheduler in Python, for lockstep::save() and torch.load.
  virtual c10::IValue state_dict() const;
  /// Loads a state dict of the same scheduler, Lockstep's or Python's, completely, or throws and
  /// changes nothing. It sets no learning rates: the optimizer's state has them.
  /// Errors: UsageError with what is missing or out of range, for the state of another scheduler,
  /// and for another number of parameter groups.
  virtual void load_state_dict(const c10::IValue& values);

 protected:
  /// Name and address of an entry of the state dict.
  using Field = std::pair<const char*, std::variant<double*, std::int64_t*, bool*>>;

  explicit LRScheduler(torch::optim::Optimizer& optimizer);

  /// Sets the first learning rates; each constructor ends with it.
  void begin();
  /// Entries of state_dict() beyond those that all schedulers have.
  virtual std::vector<Field> fields() = 0;
  /// Throws a UsageError if fields() are out of range.
  virtual void check_options() const {}
  /// Sets fields(), all or none.
  void load_fields(const c10::IValue& values);
  /// Learning rate of a group before the first step; `lr` is its current one.
  virtual double first_lr(std::size_t group, double lr) = 0;
  /// Learning rate of a group after step number `epoch`; `lr` is its current one.
  virtual double next_lr(std::size_t group, std::int64_t epoch, double lr) = 0;
  /// Like first_lr, from the group's initial learning rate: when SequentialLR starts this
  /// scheduler.
  virtual double restart_lr(std::size_t group) = 0;

  /// Learning rates of all groups after the next step.
  std::vector<double> get_lrs() override;
  /// The optimizer whose learning rates it sets.
  torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  /// Initial learning rate of a group.
  /// Errors: UsageError for a group that was added after the scheduler.
  double base_lr(std::size_t group) const;

  /// A number that Python keeps in the optimizer's parameter groups, for all its schedulers.
  double group_value(std::size_t group, const char* name) const;
  /// Sets such a number.
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

/// Options of StepLR.
struct StepLROptions {
  /// Number of step() calls between two decays.
  std::int64_t step_size = 1;
  double gamma = 0.1;
};
/// Multiplies the learning rate by gamma every step_size steps. LibTorch's own StepLR decays one
/// step later than Python's; this one as Python's.
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

/// Options of MultiStepLR.
struct MultiStepLROptions {
  /// Steps after which the learning rate decays; a step that occurs twice decays twice.
  std::vector<std::int64_t> milestones = {};
  double gamma = 0.1;
};
/// Multiplies the learning rate by gamma at each milestone. The state dict has the milestones as a
/// dict from milestone to count, Python's a Counter; load_state_dict() reads both.
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

/// Options of ConstantLR.
struct ConstantLROptions {
  double factor = 1.0 / 3;
  /// Number of step() calls with the factor.
  std::int64_t total_iters = 5;
};
/// Multiplies the learning rate by a factor for the first total_iters steps.
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

/// Options of LinearLR.
struct LinearLROptions {
  double start_factor = 1.0 / 3;
  double end_factor = 1.0;
  /// Number of step() calls until end_factor.
  std::int64_t total_iters = 5;
};
/// Changes the factor of the learning rate linearly from start_factor to end_factor: linear
/// warm-up.
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

/// Options of ExponentialLR.
struct ExponentialLROptions {
  double gamma = 0.1;
};
/// Multiplies the learning rate by gamma in each step.
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

/// Options of PolynomialLR.
struct PolynomialLROptions {
  /// Number of step() calls until learning rate 0.
  std::int64_t total_iters = 5;
  double power = 1.0;
};
/// Decays the learning rate to 0 by a polynomial of degree `power`.
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

/// Options of CosineAnnealingLR.
struct CosineAnnealingLROptions {
  /// Number of step() calls until eta_min.
  std::int64_t t_max = 1;
  double eta_min = 0;
};
/// Decays the learning rate to eta_min along a half cosine.
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

/// Options of CosineAnnealingWarmRestarts.
struct CosineAnnealingWarmRestartsOptions {
  /// Number of step() calls until the first restart; each later period is t_mult times as long.
  std::int64_t t_0 = 1;
  std::int64_t t_mult = 1;
  double eta_min = 0;
};
/// Decays the learning rate to eta_min along a half cosine, and restarts it at the end of each
/// period.
class CosineAnnealingWarmRestarts : public LRScheduler {
 public:
  CosineAnnealingWarmRestarts(torch::optim::Optimizer& optimizer,
                              const CosineAnnealingWarmRestartsOptions& options);
  c10::IValue state_dict() const override;
  /// Errors: UsageError also for a state that Python saved within an epoch, after step(0.5).
  void load_state_dict(const c10::IValue& values) override;

 private:
  std::vector<Field> fields() override;
  double first_lr(std::size_t group, double lr) override;
  double next_lr(std::size_t group, std::int64_t epoch, double lr) override;
  double restart_lr(std::size_t group) override;
  void check_options() const override;
  CosineAnnealingWarmRestartsOptions options_;
};

/// Curve of a phase of OneCycleLR: cosine or linear.
enum class AnnealStrategy : std::uint8_t { kCos, kLinear };

/// Options of OneCycleLR.
struct OneCycleLROptions {
  /// One for all parameter groups, or one each.
  std::vector<double> max_lr = {};
  /// Number of step() calls of the whole cycle.
  std::int64_t total_steps = 0;
  /// Fraction of total_steps in which the learning rate rises, 0 to 1.
  double pct_start = 0.3;
  AnnealStrategy anneal_strategy = AnnealStrategy::kCos;
  /// Cycle the momentum, or the first of the betas, too.
  bool cycle_momentum = true;
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25.0;
  double final_div_factor = 1e4;
  bool three_phase = false;
};
/// Raises the learning rate to max_lr, then decays it below its start, with momentum in the
/// opposite direction.
/// Errors: UsageError from step() after total_steps; from the constructor if cycle_momentum is set
/// and the optimizer has neither momentum nor betas, and if a phase has no steps (pct_start ·
/// total_steps is 1 or total_steps), for which Python divides by zero.
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
  std::optional<double> pct_start_;  ///< Empty after load_state_dict(): a state has none.
  AnnealStrategy strategy_;
  bool cycle_momentum_;
  bool use_beta1_ = false;
};

/// Base class of schedulers that step other schedulers. The program must not step those itself.
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

  /// Number of steps of scheduler `i` after `epoch` steps of this one; -1: it has not begun.
  virtual std::int64_t epoch_of(std::size_t i, std::int64_t epoch) const = 0;
  /// Sets the first learning rates of scheduler `i`.
  void begin_one(std::size_t i);
  /// Starts scheduler `i` from the initial learning rates.
  void restart_one(std::size_t i);
  /// Makes step number `epoch` of scheduler `i`.
  void step_one(std::size_t i, std::int64_t epoch);
  /// Returns the learning rates after all schedulers' steps, and records them.
  std::vector<double> finish_step();
  /// Number of schedulers.
  std::size_t size() const { return schedulers_.size(); }

 private:
  const char* name_;
  std::vector<std::shared_ptr<LRScheduler>> schedulers_;
};

/// Runs schedulers one after the other: scheduler i + 1 starts at step milestones[i], from the
/// initial learning rates. A SequentialLR or ChainedScheduler cannot be one of them.
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

/// Steps all schedulers in each step, in order, each on the learning rate of the one before.
class ChainedScheduler : public SchedulerList {
 public:
  ChainedScheduler(torch::optim::Optimizer& optimizer,
                   std::vector<std::shared_ptr<LRScheduler>> schedulers);

 private:
  std::vector<double> get_lrs() override;
  std::int64_t epoch_of(std::size_t i, std::int64_t epoch) const override;
};

/// Whether a lower or a higher value of a metric is better.
enum class MonitorMode { kMin, kMax };

/// Options of ReduceLROnPlateau.
struct ReduceLROnPlateauOptions {
  /// Whether threshold is relative to the best metric or absolute.
  enum class ThresholdMode : std::uint8_t { kRel, kAbs };
  MonitorMode mode = MonitorMode::kMin;
  double factor = 0.1;
  /// Number of step() calls without improvement that are tolerated.
  std::int64_t patience = 10;
  double threshold = 1e-4;
  ThresholdMode threshold_mode = ThresholdMode::kRel;
  /// Number of step() calls after a reduction that are not counted as without improvement.
  std::int64_t cooldown = 0;
  /// One for all parameter groups, or one each.
  std::vector<double> min_lr = {0.0};
  /// A smaller change of the learning rate is not made.
  double eps = 1e-8;
};

/// Multiplies the learning rates by a factor when a metric has stopped improving. It is not an
/// LRScheduler, because step() takes the metric, which must be equal on all ranks. Accelerator does
/// not prepare it; register its counters, which are in tensors():
///
///     accelerator.register_for_checkpointing("plateau", plateau.tensors());
///
/// Threads: as LRScheduler.
/// Lifetime: as LRScheduler.
/// Errors: UsageError for options out of range.
class ReduceLROnPlateau {
 public:
  explicit ReduceLROnPlateau(torch::optim::Optimizer& optimizer,
                             const ReduceLROnPlateauOptions& options = {});

  /// Counts a step with its metric and reduces the learning rates if due.
  void step(double metric);
  /// Learning rates of all parameter groups after the last step().
  const std::vector<double>& get_last_lr() const { return last_lrs_; }

  /// See LRScheduler::state_dict.
  c10::IValue state_dict() const;
  /// See LRScheduler::load_state_dict.
  void load_state_dict(const c10::IValue& values);

  /// The counters that step() changes: one tensor, which may be set in place.
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
