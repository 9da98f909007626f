#include "lockstep/train/accelerator_state.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/parse_number.h"
#include "lockstep/base/internal/random_id.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/data/internal/sample_log.h"
#include "lockstep/fully_shard/internal/shard_mesh.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/recovery/internal/step_recovery.h"
#include "lockstep/train/internal/accelerator_shards.h"
#include "lockstep/train/internal/accelerator_training.h"

namespace lockstep {
namespace {

std::optional<at::ScalarType> dtype_of(Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
      return std::nullopt;
    case Precision::kFloat16:
      return at::kHalf;
    case Precision::kBFloat16:
      return at::kBFloat16;
  }
  throw UsageError(concat("Accelerator: precision is ", static_cast<int>(precision),
                          ", which is no value of Precision"));
}

AcceleratorOptions with_one_copy(AcceleratorOptions options) {
  options.one_copy_per_machine = options.one_copy_per_machine || options.ddp.one_copy_per_machine;
  return options;
}

void check_fully_shard(const AcceleratorOptions& options) {
  const auto refuse = [](bool is_set, const char* name) {
    if (!is_set) return;
    throw UsageError(concat("Accelerator: strategy kFullyShard with ", name,
                            " is not supported; leave one of them out"));
  };
  refuse(options.logical_shards != 0, "logical_shards");
  refuse(options.one_copy_per_machine, "one_copy_per_machine");
  refuse(options.memory_every > 0, "memory_every");
  refuse(options.check_replicas_every > 0 || options.ddp.check_replicas_every > 0,
         "check_replicas_every");
  refuse(options.ddp.comm_hook != nullptr, "ddp.comm_hook");
  refuse(!options.fully_shard.ignored_parameters.empty(), "fully_shard.ignored_parameters");
  refuse(static_cast<bool>(options.fully_shard.process_group),
         "fully_shard.process_group (the accelerator shards over its own ranks)");
  refuse(static_cast<bool>(options.fully_shard.replicate_group),
         "fully_shard.replicate_group (fully_shard.hybrid_shard makes the groups)");
}

void check_options(const AcceleratorOptions& options) {
  if (options.gradient_accumulation_steps < 1) {
    throw UsageError(concat("Accelerator: gradient_accumulation_steps is ",
                            options.gradient_accumulation_steps, ", it must be at least 1"));
  }
  if (options.strategy == Strategy::kFullyShard) check_fully_shard(options);
}

}  // namespace

AcceleratorState::AcceleratorState(AcceleratorOptions options, ProcessGroup group)
    : options_(with_one_copy(std::move(options))),
      group_(std::move(group)),
      autocast_dtype_(dtype_of(options_.precision)),
      scaler_({.enabled = autocast_dtype_ == at::kHalf}),
      training_id_(random_id()) {
  check_options(options_);
  if (options_.logical_shards != 0) shards_ = std::make_unique<AcceleratorShards>(*this);
  if (!group_) join();
  if (options_.strategy == Strategy::kFullyShard) {
    const ShardMesh mesh =
        shard_mesh_of({.process_group = group_, .hybrid_shard = options_.fully_shard.hybrid_shard});
    shard_group_ = mesh.shard;
    replicate_group_ = mesh.replicate;
    scaler_ = make_scaler();
  }
  if (is_discarding()) return;
  if (shards_) shards_->set_group();
  open_sample_log();
}

AcceleratorState::~AcceleratorState() = default;

TensorDict PreparedReplica::parameters() {
  if (const ShardedModule* const own = sharded()) return own->named_parameters();
  TensorDict parameters;
  for (const auto& item : module()->named_parameters()) {
    parameters.emplace_back(item.key(), item.value());
  }
  return parameters;
}

bool AcceleratorState::is_accumulating() const {
  return shards_ ? shards_->is_within_step() : has_gradients_ && !sync_gradients();
}

void AcceleratorState::check_collective(const char* operation) const {
  if (!shards_ || shards_->ends_step()) return;
  throw UsageError(concat(operation,
                          ": with logical_shards ranks may have different numbers of shards in a "
                          "step; call it where sync_gradients() is true"));
}

void AcceleratorState::check_summed(const char* operation) const {
  if (!shards_ || shards_->has_sum()) return;
  throw UsageError(concat(operation,
                          ": with logical_shards gradients are summed over the shards by "
                          "Accelerator::backward; call it in place of loss.backward(), once for "
                          "each shard"));
}

void AcceleratorState::check_gradients(const char* operation,
                                       const std::vector<at::Tensor>& parameters) const {
  if (shards_) shards_->check_gradients(operation, parameters);
}

void AcceleratorState::refuse_with_shards(const char* operation) const {
  if (!shards_) return;
  throw UsageError(concat(operation,
                          ": not supported with logical_shards, where gradients stay a "
                          "shard's own until the step's last backward()"));
}

int AcceleratorState::shards_of_next_loader(int given) const {
  const int expected = loaders.empty() ? options_.logical_shards : 0;
  if (given == 0 || given == expected) return expected;
  throw UsageError(
      concat("Accelerator: the data loader has logical_shards=", given,
             loaders.empty() ? ", the accelerator " : ", a second loader ", expected,
             "; set the accelerator's option, which the loader prepared first follows"));
}

void AcceleratorState::end_left_step() {
  if (shards_) shards_->end_left_step();
}

bool AcceleratorState::sync_gradients() const {
  return shards_ ? shards_->ends_step() : sync_gradients_ || is_group_left();
}

double AcceleratorState::loss() const {
  if (shards_) return shards_->loss();
  throw UsageError(
      "Accelerator::loss: it is the sum over logical shards, and logical_shards is 0; set it, or "
      "reduce() each rank's loss");
}

void AcceleratorState::open_sample_log() {
  if (options_.sample_log_directory.empty()) return;
  const int rank = group_.rank();
  const std::string run = broadcast_text(
      group_, rank == 0 ? concat(SampleLog::last_run(options_.sample_log_directory) + 1) : "", 0);
  sample_log_ = std::make_shared<SampleLog>(
      options_.sample_log_directory,
      SampleLog::Writer{.run = parse_number<std::int64_t>(run).value_or(1),
                        .rank = rank,
                        .world_size = group_.world_size()});
}

void AcceleratorState::add_loader(const std::shared_ptr<LoaderPosition>& loader) {
  if (is_discarding()) {  // So that size() is what it is on the others.
    loader->set_part({.rank = std::max(process_index(), 0), .world_size = num_processes()});
  } else if (loader->world_size() != group_.world_size()) {
    throw UsageError(concat("Accelerator::prepare: the data loader was made for ",
                            loader->world_size(), " of ", group_.world_size(),
                            " ranks; make it after the accelerator, or by its make_data_loader"));
  }
  if (loader->logical_shards() != shards_of_next_loader(loader->logical_shards())) {
    throw UsageError(concat("Accelerator::prepare: the data loader was made for ",
                            loader->logical_shards(), " logical shards, the option is ",
                            options_.logical_shards, "; make it by make_data_loader"));
  }
  if (sample_log_) loader->set_log(sample_log_, static_cast<int>(loaders.size()));
  if (shards_ && loaders.empty()) {
    loader->set_shard_visit([this](const ShardPlace& place) { shards_->begin_shard(place); });
  }
  if (recovery_ && loaders.empty()) {
    loader->set_boundary_visit([this](LoaderBoundary boundary) { visit_boundary(boundary); });
  }
  loaders.push_back(loader);
}

void AcceleratorState::begin_micro_batch() {
  if (shards_) return;  // The loader says which batches make up a step.
  end_left_group();
  is_given_up_ = false;
  if (turn_of_step_ == 0) has_gradients_ = false;
  ++turn_;
  ++turn_of_step_;
  if (turn_of_step_ == 1) plan_step(options_.gradient_accumulation_steps);
  const LoaderPosition* const loader = current_loader();
  sync_gradients_ =
      turn_of_step_ >= options_.gradient_accumulation_steps || (loader && loader->is_last());
  pass_of_group_.reset();
  if (!sync_gradients_ && loader) pass_of_group_ = loader->pass();
}

void AcceleratorState::end_micro_batch() {
  if (!shards_ && sync_gradients_) turn_of_step_ = 0;
}

// Its gradients are of this rank alone, and too few for a step.
void AcceleratorState::end_left_group() {
  if (!is_group_left()) return;
  pass_of_group_.reset();
  turn_of_step_ = 0;
  sync_gradients_ = true;
  has_gradients_ = false;
  is_given_up_ = true;
  losses_are_old_ = true;
  for (const auto& replica : replicas) replica->zero_grad();
  for (const auto& stepped : optimizers) stepped->optimizer->zero_grad();
}

const LoaderPosition* AcceleratorState::current_loader() const {
  const LoaderPosition* current = nullptr;
  for (const auto& loader : loaders) {
    if (!loader->is_in_pass() || !loader->has_batch()) continue;
    if (current == nullptr || loader->pass_began() > current->pass_began()) current = loader.get();
  }
  return current;
}

void AcceleratorState::backward(const at::Tensor& loss, std::optional<double> weight) {
  if (has_lost_group()) return;
  recoveries_before_gradients_ = recoveries();
  for (const auto& stepped : optimizers) stepped->has_new_gradients = true;
  attempt_in_step([&] { exchange_gradients(loss, weight); });
}

void AcceleratorState::exchange_gradients(const at::Tensor& loss, std::optional<double> weight) {
  check_optimizers();
  if (shards_) return exchange_shard(loss, weight);
  end_left_group();
  is_given_up_ = false;
  if (shard_group()) shard_added_parameters();
  if (turn_of_step_ == 0) plan_step(1);
  const LoaderPosition* const loader = current_loader();
  if (replicas.size() != 1) check_batches(loader, weight);
  if (!weight && is_weighted_) weight = loader ? nominal_weight(*loader) : 1;
  note_loss(loss);
  at::Tensor total = loss;
  if (!weight && batches_of_step_ > 1) total = total / batches_of_step_;
  if (scaler_.is_enabled()) {
    update_scaler();
    total = scaler_.scale(total);
  }
  has_gradients_ = true;
  if (weight) {
    replicas.front()->backward(total, {.weight = *weight});
  } else {
    total.backward();
  }
}

void AcceleratorState::note_loss(const at::Tensor& loss) {
  if (options_.non_finite == NonFinite::kIgnore) return;
  if (std::exchange(losses_are_old_, false)) losses_.clear();
  losses_.push_back(loss.detach());
}

void AcceleratorState::exchange_shard(const at::Tensor& loss, std::optional<double> weight) {
  note_loss(loss);
  if (scaler_.is_enabled()) update_scaler();
  shards_->backward(loss, weight);
}

// A loss with a weight is the gradient of one model. With the first batch: else the error comes
// with the last of an epoch.
void AcceleratorState::check_batches(const LoaderPosition* loader,
                                     std::optional<double> weight) const {
  if (!weight && loader == nullptr) return;
  const bool may_differ = group_.world_size() > 1 || options_.gradient_accumulation_steps > 1;
  if (!weight && (!may_differ || loader->has_even_batches())) return;
  throw UsageError(concat(
      "Accelerator::backward: ", replicas.size(), " models are prepared, and ",
      weight ? std::string("the loss has a weight")
             : concat("the batches of an epoch differ in size (dataset of ", loader->dataset_size(),
                      " samples, batches of ", loader->batch_size(), " on ", group_.world_size(),
                      " ranks), so that the last loss has a weight"),
      "; it is not known whose gradients it is for. Call backward() of model.ddp(), or with "
      "kFullyShard of model.fully_sharded(), with the weight, or set drop_last, with a batch size "
      "that the number of ranks divides"));
}

// As large as the factor of a batch of full size is, so that a scaled loss does not overflow where
// that of other steps does not. A power of two: no weight is rounded, whatever the loss's dtype.
double AcceleratorState::nominal_weight(const LoaderPosition& loader) const {
  const double samples_of_step = loader.full_samples() * batches_of_step_;
  return std::ldexp(static_cast<double>(loader.samples()),
                    -static_cast<int>(std::ceil(std::log2(samples_of_step))));
}

// Without one they would take scaled gradients, or a rank's own.
void AcceleratorState::check_optimizers() const {
  const bool needs_one = shards_ || scaler_.is_enabled() ||
                         options_.gradient_accumulation_steps > 1 ||
                         options_.non_finite != NonFinite::kIgnore;
  if (!needs_one || !optimizers.empty()) return;
  throw UsageError(
      "Accelerator::backward: fp16, gradient_accumulation_steps, logical_shards and non_finite "
      "need "
      "an optimizer that is prepared; give it to prepare(), and use what that returns");
}

// Whether all ranks have as many samples of each of a step's batches.
void AcceleratorState::plan_step(int most_batches) {
  const LoaderPosition* const loader = current_loader();
  batches_of_step_ = most_batches;
  is_weighted_ = false;
  if (loader == nullptr) return;
  batches_of_step_ = static_cast<int>(std::min<std::int64_t>(most_batches, loader->batches_left()));
  is_weighted_ = loader->even_from_here() < batches_of_step_;
  // Of one rank's one batch the loss is the mean.
  if (group_.world_size() == 1 && batches_of_step_ == 1) is_weighted_ = false;
}

bool AcceleratorState::may_zero_grad(PreparedOptimizerState& stepped) {
  if (shard_group()) shard_added_parameters();
  end_left_group();
  const bool is_after_step = stepped.called_at_turn == turn_;
  const bool may =
      options_.gradient_accumulation_steps == 1 || !has_gradients_ ||
      (is_after_step ? sync_gradients_ && stepped.at_turn == turn_ : turn_of_step_ <= 1);
  if (may) stepped.has_new_gradients = false;
  return may;
}

void AcceleratorState::update_scaler() {
  if (std::exchange(has_stepped_with_scaler_, false)) scaler_.update();
  for (const auto& stepped : optimizers) stepped->is_unscaled = false;
}

void AcceleratorState::unscale_gradients(const std::vector<at::Tensor>& parameters) {
  if (!scaler_.is_enabled()) return;
  std::unordered_set<const c10::TensorImpl*> given;
  for (const at::Tensor& parameter : parameters) given.insert(parameter.unsafeGetTensorImpl());
  const auto has_one_given = [&](const auto& group) {
    return std::ranges::any_of(group.params(), [&](const at::Tensor& parameter) {
      return given.contains(parameter.unsafeGetTensorImpl());
    });
  };
  for (const auto& stepped : optimizers) {
    const auto& groups = stepped->optimizer->param_groups();
    if (stepped->is_unscaled || std::ranges::none_of(groups, has_one_given)) continue;
    scaler_.unscale_(*stepped->optimizer);
    stepped->is_unscaled = true;
  }
}

void AcceleratorState::step(PreparedOptimizerState& stepped) {
  end_left_group();
  stepped.called_at_turn = turn_;
  if (!sync_gradients() || is_given_up_) return;
  if (recovery_) recovery_->expect_update();
  if (has_lost_group()) return;
  check_summed("PreparedOptimizer::step");
  for (const auto& group : stepped.optimizer->param_groups()) {
    check_gradients("PreparedOptimizer::step", group.params());
  }
  bool is_finite = true;
  const bool has_updated = attempt_in_step([&] { is_finite = look_at_gradients(stepped); }) &&
                           update(stepped, is_finite);
  if (!has_updated) {
    recovery_->expect_update();
    return;
  }
  losses_are_old_ = true;
  if (&stepped == optimizers.front().get()) ++steps_;
  stepped.has_new_gradients = false;
  stepped.has_stepped = true;
  if (training_) training_->end_update();
}

// False: ranks were lost, and the update does not count.
bool AcceleratorState::update(PreparedOptimizerState& stepped, bool is_finite) {
  if (training_) training_->begin_update(stepped);
  stepped.at_turn = turn_;
  stepped.was_skipped = !is_finite;
  if (stepped.was_skipped) return true;
  return attempt_in_step([&] {
    try {
      if (scaler_.is_enabled()) {
        stepped.was_skipped = !scaler_.step(*stepped.optimizer);
        has_stepped_with_scaler_ = true;
      } else {
        step_optimizer(*stepped.optimizer);
      }
    } catch (const Error&) {
      if (training_) training_->fail_update(stepped);
      throw;
    }
  });
}

void AcceleratorState::step(PreparedSchedulerState& scheduled) {
  end_left_group();
  if (is_discarding()) return;
  if (!sync_gradients() || was_step_skipped()) return;
  scheduled.scheduler->step();
  ++scheduled.steps;
}

bool AcceleratorState::was_step_skipped() const {
  return std::ranges::any_of(optimizers, [](const auto& one) { return one->was_skipped; });
}

}  // namespace lockstep
