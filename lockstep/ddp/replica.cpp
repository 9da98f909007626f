#include "lockstep/ddp/replica.h"

#include <algorithm>

#include <ATen/ops/full_like.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/internal/agreement.h"
#include "lockstep/comm/internal/native_collectives.h"
#include "lockstep/ddp/exchange/flat_messages.h"
#include "lockstep/ddp/exchange/one_copy_gradients.h"
#include "lockstep/ddp/internal/gradient_reducer.h"
#include "lockstep/ddp/internal/model_agreement.h"
#include "lockstep/ddp/internal/replica_state.h"
#include "lockstep/ddp/internal/weighted_loss.h"
#include "lockstep/ddp/replica_check.h"
#include "lockstep/one_copy/internal/model_copy.h"

namespace lockstep {
namespace {

constexpr double kBytesPerMb = 1024.0 * 1024.0;
constexpr double kDefaultBucketCapMb = 25;
constexpr double kFirstBucketCapMb = 1;

BucketCaps bucket_caps(const DistributedDataParallelOptions& options, const ProcessGroup& group) {
  std::vector<double> caps_mb = options.bucket_cap_mb_list;
  if (caps_mb.empty() && options.bucket_cap_mb) caps_mb = {*options.bucket_cap_mb};
  if (caps_mb.empty()) {
    // A backend that knows what suits the machine needs no small first bucket.
    if (const std::int64_t best = bucket_bytes(group); best > 0) return {best};
    caps_mb = {kFirstBucketCapMb, kDefaultBucketCapMb};
  }
  BucketCaps caps;
  for (const double mb : caps_mb) caps.push_back(static_cast<std::int64_t>(mb * kBytesPerMb));
  return caps;
}

const torch::nn::Module& not_null(const std::shared_ptr<torch::nn::Module>& module) {
  if (!module) throw UsageError("DistributedDataParallel: the module is null");
  return *module;
}

std::size_t index_of(const std::vector<std::string>& names, const std::string& name,
                     const char* option) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  throw UsageError(concat("DistributedDataParallel: ", option, " names '", name,
                          "', which is no parameter that requires a gradient; names are those of "
                          "named_parameters()"));
}

std::vector<at::Tensor> trained_parameters(const ReplicaState& state) {
  std::vector<at::Tensor> trained;
  for (const auto& [name, parameter] : state.parameters()) {
    if (parameter.requires_grad()) trained.push_back(parameter);
  }
  return trained;
}

// All that ranks take from rank 0: not what lies in memory of one copy that they have kept.
std::vector<at::Tensor> tensors_to_sync(const ReplicaState& state, bool have_kept) {
  std::vector<at::Tensor> tensors = state.buffer_tensors();
  for (const auto& [name, parameter] : state.parameters()) {
    if (!have_kept || !parameter.requires_grad()) tensors.push_back(parameter);
  }
  return tensors;
}

}  // namespace

Replica::Replica(std::shared_ptr<torch::nn::Module> module,
                 const DistributedDataParallelOptions& options)
    : module_(std::move(module)),
      options_(options),
      group_(options.process_group ? options.process_group : default_process_group()),
      state_(std::make_unique<ReplicaState>(not_null(module_),
                                            options.parameters_and_buffers_to_ignore)) {
  check(options_);
  check_models_agree(group_, *state_, describe(options_), "DistributedDataParallel");
  std::shared_ptr<CopyMemory> kept;
  if (has_one_copy() && group_.shares_memory()) {
    kept = ModelCopy::find_kept(group_, trained_parameters(*state_));
  }
  if (options_.init_sync) {
    broadcast_tensors(group_, tensors_to_sync(*state_, kept != nullptr), 0);
  }
  make_reducer(std::move(kept));
}

bool Replica::has_one_copy() const {
  return options_.one_copy_per_machine && group_.world_size() > 1 && !has_rank_per_machine(group_);
}

void Replica::make_reducer(std::shared_ptr<CopyMemory> kept) {
  std::vector<at::Tensor> trained;
  std::vector<std::string> names;
  for (const auto& [name, parameter] : state_->parameters()) {
    if (!parameter.requires_grad()) {
      frozen_.push_back({name, parameter});
      continue;
    }
    const at::ScalarType dtype = parameter.scalar_type();
    if (!at::isFloatingType(c10::toRealValueType(dtype)) || dtype == at::kComplexHalf) {
      throw UsageError(concat("DistributedDataParallel on rank ", group_.rank(), ": parameter '",
                              name, "' has dtype ", c10::toString(dtype),
                              "; gradients of floating-point and complex float and double dtypes "
                              "can be exchanged"));
    }
    trained.push_back(parameter);
    names.push_back(name);
  }
  if (trained.empty()) {
    throw UsageError(concat("DistributedDataParallel on rank ", group_.rank(),
                            ": no parameter of the module requires a gradient; use the module "
                            "without the wrapper"));
  }
  if (has_one_copy()) make_one_copy(std::move(kept), trained, names);
  GradientReducer::Plan plan{
      .caps = bucket_caps(options_, group_), .one_copy = one_copy_, .after_exchange = [this] {
        ++exchanges_;
        sync_buffers();
        if (options_.step_timer) options_.step_timer->end_step();
      }};
  for (const std::string& name : options_.delay_all_reduce_named_params) {
    plan.delayed.push_back(index_of(names, name, "delay_all_reduce_named_params"));
  }
  if (!plan.delayed.empty()) {
    plan.delay_until =
        index_of(names, options_.param_to_hook_all_reduce, "param_to_hook_all_reduce");
  }
  reducer_ = std::make_unique<GradientReducer>(std::move(trained), std::move(names), group_,
                                               options_, std::move(plan));
}

void Replica::make_one_copy(std::shared_ptr<CopyMemory> kept,
                            const std::vector<at::Tensor>& trained,
                            const std::vector<std::string>& names) {
  if (!has_shared_copies(group_)) {
    throw UsageError(concat("DistributedDataParallel on rank ", group_.rank(),
                            ": one_copy_per_machine needs a group whose ranks share memory "
                            "(backend shm, or hierarchical over several machines), and group '",
                            group_.name(), "' has backend ", group_.backend_name(),
                            "; leave the option out"));
  }
  const std::string name = concat("model ", count_replica(group_));
  one_copy_ = std::make_shared<OneCopyGradients>(
      group_, ModelCopy::make(group_, name, std::move(kept), trained, names));
}

Replica::~Replica() = default;

std::vector<at::Tensor> Replica::parameters() const {
  std::vector<at::Tensor> tensors;
  for (NamedTensor& parameter : state_->parameters())
    tensors.push_back(std::move(parameter.tensor));
  return tensors;
}

double Replica::gradient_norm() const {
  if (!options_.gradient_norm) {
    throw UsageError(concat("DistributedDataParallel on rank ", group_.rank(),
                            ": gradient_norm() was not asked for; construct it with "
                            "{.gradient_norm = true}"));
  }
  const auto norm = reducer_->gradient_norm();
  if (!norm) {
    throw UsageError(concat("DistributedDataParallel on rank ", group_.rank(),
                            ": gradient_norm() before a backward pass has exchanged gradients; "
                            "call it after backward() outside no_sync()"));
  }
  return *norm;
}

std::vector<at::Tensor> Replica::averaged_gradients() {
  if (one_copy_) return one_copy_->copy().averaged_gradients();
  std::vector<at::Tensor> trained = parameters();
  std::erase_if(trained, [](const at::Tensor& one) { return !one.requires_grad(); });
  return averaged_gradients_of(trained);
}

std::vector<BucketLayout> Replica::bucket_layout() const {
  return reducer_->bucket_layout();
}

ExchangeReport Replica::exchange_report() const {
  auto report = reducer_->exchange_report();
  if (report) return *std::move(report);
  throw UsageError(concat("DistributedDataParallel on rank ", group_.rank(),
                          ": exchange_report() without an exchange that was measured; construct it "
                          "with {.measure_exchange = true} and call it after backward()"));
}

void Replica::set_buffers(const std::vector<NamedTensor>& buffers) {
  state_->set_buffers(buffers);
}

void Replica::before_forward() {
  if (reducer_->in_backward()) {
    throw UsageError(
        concat("DistributedDataParallel on rank ", group_.rank(),
               ": the backward pass before this forward did not end; after an error in "
               "backward() wrap the module again"));
  }
  check_parameters();
  reducer_->before_forward();
  enter(StepPhase::kExchange);
  if (module_->is_training()) check_when_due();
  // Evaluation communicates only after a training forward that no backward followed.
  if ((module_->is_training() || buffers_differ_) && reducer_->sync()) sync_buffers();
  buffers_differ_ = buffers_differ_ || module_->is_training();
  enter(StepPhase::kForward);
}

void Replica::check_parameters() const {
  reducer_->check_parameters();
  for (const auto& [name, parameter] : frozen_) {
    if (!parameter.requires_grad()) continue;
    throw UsageError(concat("DistributedDataParallel on rank ", group_.rank(), ": parameter '",
                            name,
                            "' was frozen when the module was wrapped and is trained now, so that "
                            "its gradient is not exchanged; wrap the module again"));
  }
}

void Replica::enter(StepPhase phase) {
  if (options_.step_timer) options_.step_timer->enter(phase);
}

void Replica::check_when_due() {
  if (options_.check_replicas_every == 0 || exchanges_ < options_.check_replicas_every) return;
  exchanges_ = 0;
  std::vector<NamedTensor> tensors = state_->parameters();
  // Buffers that are not exchanged may be each rank's own.
  if (options_.forward_sync_buffers && !buffers_differ_) {
    for (NamedTensor& buffer : state_->buffers()) tensors.push_back(std::move(buffer));
  }
  compare(std::move(tensors), optimizer_);
}

void Replica::check_replicas_agree(const torch::optim::Optimizer* optimizer) const {
  std::vector<NamedTensor> tensors = state_->parameters();
  for (NamedTensor& buffer : state_->buffers()) tensors.push_back(std::move(buffer));
  compare(std::move(tensors), optimizer);
}

void Replica::compare(std::vector<NamedTensor> tensors,
                      const torch::optim::Optimizer* optimizer) const {
  if (optimizer == nullptr) return lockstep::check_replicas_agree(group_, tensors);
  lockstep::check_replicas_agree(group_, tensors, *optimizer);
}

void Replica::after_forward() {
  reducer_->after_forward();
  enter(c10::GradMode::is_enabled() ? StepPhase::kBackward : StepPhase::kOther);
}

void Replica::add_outputs(const std::vector<at::Tensor>& outputs) {
  reducer_->add_outputs(outputs);
}

void Replica::backward(const at::Tensor& loss, const WeightedBackwardOptions& options) {
  check_weighted_loss("DistributedDataParallel::backward", group_, loss, options.weight);
  reducer_->run_weighted(options.weight, loss.scalar_type(), [&](double seed) {
    loss.backward(at::full_like(loss, seed), options.retain_graph, options.create_graph);
  });
}

void Replica::set_has_data(bool has_data) {
  reducer_->set_has_data(has_data);
}

void Replica::discard_passes() {
  reducer_->discard_passes();
}

void Replica::cast_vote(bool has_data, int vote) {
  reducer_->cast_vote(has_data, vote);
}

std::optional<int> Replica::withdraw_vote() {
  return reducer_->withdraw_vote();
}

void Replica::sync_buffers() {
  buffers_differ_ = false;
  if (options_.forward_sync_buffers) broadcast_tensors(group_, state_->buffer_tensors(), 0);
}

NoSyncGuard::NoSyncGuard(Replica& replica, bool enabled)
    : reducer_(replica.reducer_.get()), before_(reducer_->sync()) {
  reducer_->set_sync(before_ && !enabled);
}

NoSyncGuard::~NoSyncGuard() {
  reducer_->set_sync(before_);
}

}  // namespace lockstep
