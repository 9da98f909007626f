#include "lockstep/train/accelerator.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/optim/clip_grad.h"

namespace lockstep {

AccumulateGuard::AccumulateGuard(std::shared_ptr<AcceleratorState> state)
    : state_(std::move(state)) {
  state_->begin_micro_batch();
  if (state_->sync_gradients()) return;
  for (const auto& replica : state_->replicas) local_.push_back(replica->no_sync());
}

AccumulateGuard::~AccumulateGuard() {
  state_->end_micro_batch();
}

Accelerator::Accelerator(const AcceleratorOptions& options) : has_joined_(!is_initialized()) {
  try {
    state_ = std::make_shared<AcceleratorState>(
        options, has_joined_ ? ProcessGroup() : default_process_group());
  } catch (...) {
    if (has_joined_) destroy_process_group();
    throw;
  }
}

Accelerator::~Accelerator() {
  if (has_joined_ && is_initialized()) destroy_process_group();
}

DistributedDataParallelOptions Accelerator::ddp_options() const {
  DistributedDataParallelOptions ddp = options().ddp;
  if (options().non_finite != NonFinite::kIgnore && ddp.comm_hook &&
      !ddp.comm_hook->keeps_replicas_equal()) {
    throw UsageError(concat("Accelerator: non_finite with comm_hook '", ddp.comm_hook->describe(),
                            "', which leaves each rank gradients of its own, so that ranks would "
                            "leave out different steps; leave one of them out"));
  }
  ddp.one_copy_per_machine = options().one_copy_per_machine;
  ddp.process_group = process_group();
  ddp.gradient_norm = ddp.gradient_norm ||
                      (options().non_finite != NonFinite::kIgnore && options().logical_shards == 0);
  return ddp;
}

Autocast Accelerator::autocast() const {
  const auto dtype = state_->autocast_dtype();
  return Autocast({.device_type = device().type(), .dtype = dtype, .enabled = dtype.has_value()});
}

double Accelerator::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                    double norm_type) {
  if (!sync_gradients() || state_->has_lost_group()) return 0;
  state_->check_summed("clip_grad_norm_");
  // A gradient that is this rank's own would make the norm, and so the factor, its own.
  state_->check_gradients("clip_grad_norm_", parameters);
  double norm = 0;
  const std::vector<at::Tensor> own = state_->own_parts(parameters);
  state_->attempt_in_step([&] {
    state_->unscale_gradients(own);
    norm = lockstep::clip_grad_norm_(own, max_norm, state_->norm_options(norm_type));
  });
  return norm;
}

void Accelerator::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  if (!sync_gradients() || state_->has_lost_group()) return;
  state_->check_summed("clip_grad_value_");
  const std::vector<at::Tensor> own = state_->own_parts(parameters);
  state_->attempt_in_step([&] {
    state_->unscale_gradients(own);
    lockstep::clip_grad_value_(own, clip_value);
  });
}

double Accelerator::get_total_norm(const std::vector<at::Tensor>& parameters) const {
  // Before a rank's last shard, other ranks may be at other shards.
  const bool is_summed = sync_gradients() && !state_->has_lost_group();
  if (state_->options().logical_shards > 0 && !is_summed) return 0;
  double norm = std::numeric_limits<double>::quiet_NaN();
  if (!state_->has_all_gradients()) return norm;
  const std::vector<at::Tensor> own = state_->own_parts(parameters);
  state_->attempt_in_step(
      [&] { norm = lockstep::get_total_norm(own, state_->norm_options(/*norm_type=*/2)); });
  return norm;
}

TensorDict Accelerator::get_state_dict(const torch::nn::Module& module) const {
  for (const auto& replica : state_->replicas) {
    if (replica->module().get() != &module || replica->sharded() == nullptr) continue;
    return state_->attempt(
        [&] { return replica->sharded()->full_state_dict({.rank0_only = true}); });
  }
  return state_dict(module);
}

void Accelerator::wait_for_everyone() const {
  state_->run_on_survivors([&] { process_group().barrier(); });
}

bool Accelerator::try_end_training() {
  return state_->end_training();
}

void Accelerator::end_training() {
  if (try_end_training()) return;
  throw Error(
      "Accelerator::end_training: the loop was left in a void step, in which a rank had failed; "
      "loop over epochs(), which replays that step");
}

Accelerator::Epochs::Iterator::Iterator(AcceleratorState* state, std::int64_t end)
    : state_(state), end_(end), epoch_(state->begin_epochs()), recoveries_(state->recoveries()) {
  end_if_reached();
}

Accelerator::Epochs::Iterator& Accelerator::Epochs::Iterator::operator++() {
  const std::int64_t next = state_->epoch();
  // Where the loop was left in a step that then was void, the epoch goes on.
  const bool was_disturbed =
      std::exchange(recoveries_, state_->recoveries()) != state_->recoveries();
  if (next == epoch_ && !was_disturbed) {
    throw UsageError(concat("Accelerator::epochs: epoch ", epoch_,
                            " has not looped over the data loader that was prepared first"));
  }
  epoch_ = next;
  end_if_reached();
  return *this;
}

void Accelerator::Epochs::Iterator::end_if_reached() {
  if (epoch_ < end_) return;
  const bool is_over = state_->end_training();
  epoch_ = is_over ? end_ : state_->epoch();
}

at::Tensor Accelerator::gather(const at::Tensor& tensor) const {
  state_->check_collective("gather");
  const at::NoGradGuard no_grad;
  const at::Tensor own = (tensor.dim() == 0 ? tensor.reshape({1}) : tensor).detach().contiguous();
  return state_->attempt([&] {
    std::vector<std::int64_t> shape = own.sizes().vec();
    shape[0] *= process_group().world_size();
    at::Tensor all = at::empty(shape, own.options());
    process_group().all_gather_into_tensor(all, own, {.name = "gather"});
    return all;
  });
}

at::Tensor Accelerator::gather_for_metrics(const at::Tensor& tensor) const {
  const LoaderPosition* const loader = state_->current_loader();
  if (loader == nullptr || tensor.dim() == 0 || state_->has_lost_group()) return gather(tensor);
  if (loader->logical_shards() > 0) {
    throw UsageError(
        "gather_for_metrics: not supported for a batch of logical_shards, of which ranks may have "
        "different numbers; use loss(), or evaluate over another loader");
  }
  const auto rows_of = [&](int rank) {
    return std::max<std::int64_t>(loader->samples_of(rank), 1);
  };
  if (tensor.size(0) != rows_of(process_index())) {
    throw UsageError(concat("gather_for_metrics: rank ", process_index(), " gave ", tensor.size(0),
                            " rows for a batch of ", rows_of(process_index()),
                            "; give a row for each sample, or use gather()"));
  }
  const std::int64_t most = rows_of(0);  // The first ranks have one more.
  at::Tensor own = tensor.detach();
  if (own.size(0) < most) own = at::cat({own, own.narrow(0, 0, 1)});
  const at::Tensor all = gather(own);
  if (state_->has_lost_group()) return all;
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < num_processes(); ++rank) {
    parts.push_back(all.narrow(0, rank * most, loader->samples_of(rank)));
  }
  return at::cat(parts);
}

at::Tensor Accelerator::reduce(const at::Tensor& tensor, ReduceOp op) const {
  state_->check_collective("reduce");
  return state_->attempt([&] {
    at::Tensor result = tensor.detach().clone(at::MemoryFormat::Contiguous);
    process_group().all_reduce(result, {.op = op, .name = "reduce"});
    return result;
  });
}

}  // namespace lockstep
