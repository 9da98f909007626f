#include "lockstep/fully_shard/sharded_module.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include <ATen/ops/full_like.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/base/internal/log.h"
#include "lockstep/ddp/internal/model_agreement.h"
#include "lockstep/ddp/internal/replica_state.h"
#include "lockstep/ddp/internal/weighted_loss.h"
#include "lockstep/fully_shard/internal/full_state.h"
#include "lockstep/fully_shard/internal/kept_shards.h"
#include "lockstep/fully_shard/internal/module_parameters.h"
#include "lockstep/fully_shard/internal/shard_mesh.h"
#include "lockstep/fully_shard/internal/sharded_training_state.h"
#include "lockstep/fully_shard/internal/sharded_units.h"
#include "lockstep/fully_shard/internal/unit_plan.h"
#include "lockstep/os/memory/freed_memory.h"

namespace lockstep {
namespace {

// Of the names of collectives.
constexpr std::size_t kMostNameLetters = 23;

void check(const FullyShardOptions& options) {
  for (const auto& dtype : {options.mp_policy.param_dtype, options.mp_policy.reduce_dtype}) {
    if (!dtype || at::isFloatingType(*dtype)) continue;
    throw UsageError(concat("fully_shard: mp_policy with ", c10::toString(*dtype),
                            "; give a floating-point dtype"));
  }
  if (options.gradient_divide_factor && !(*options.gradient_divide_factor > 0)) {
    throw UsageError(concat("fully_shard: gradient_divide_factor=", *options.gradient_divide_factor,
                            "; it must be above 0"));
  }
}

std::string describe(const FullyShardOptions& options, const std::vector<std::string>& units) {
  const auto dtype = [](const std::optional<at::ScalarType>& given) {
    return given ? c10::toString(*given) : "unset";
  };
  std::string text =
      concat("options reshard_after_forward=", options.reshard_after_forward.text(),
             " param_dtype=", dtype(options.mp_policy.param_dtype),
             " reduce_dtype=", dtype(options.mp_policy.reduce_dtype),
             " gradient_divide_factor=", options.gradient_divide_factor.value_or(0),
             " gradient_norm=", options.gradient_norm, " init_sync=", options.init_sync, "\n");
  for (const std::string& name : options.ignored_parameters) text += "ignored " + name + "\n";
  for (const std::string& name : units) text += "unit '" + name + "'\n";
  return text;
}

// As FSDP2 understands the number.
ReshardAfterForward resolve(const ReshardAfterForward& given, const ProcessGroup& group) {
  if (!given.ranks()) return given;
  const std::int64_t ranks = *given.ranks();
  const int all = group.world_size();
  if (ranks < 1 || all % ranks != 0) {
    std::string divisors;
    for (int number = 2; number < all; ++number) {
      if (all % number == 0) divisors += concat(divisors.empty() ? "" : ", ", number);
    }
    throw UsageError(concat("fully_shard on rank ", group.rank(), ": reshard_after_forward=", ranks,
                            " does not divide the ranks of process_group, which are ", all,
                            "; choose true, false", divisors.empty() ? "" : " or one of ",
                            divisors));
  }
  if (ranks > 1) return ranks == all ? ReshardAfterForward(true) : given;
  if (group.rank() == 0) {
    log(LogLevel::kWarning,
        "fully_shard: reshard_after_forward=1 is false: each rank keeps whole parameters from "
        "forward to backward; write false for that, or true to free them");
  }
  return false;
}

// Empty where nothing would be gathered over it.
ProcessGroup reshard_group_of(const FullyShardOptions& options, const ProcessGroup& group) {
  const auto ranks = options.reshard_after_forward.ranks();
  const bool copies = !group.shares_memory() || options.mp_policy.param_dtype;
  return ranks && copies ? consecutive_ranks(group, static_cast<int>(*ranks)) : ProcessGroup();
}

// A unit's parameters in the groups that are exchanged together.
std::vector<std::vector<NamedTensor>> exchanged_together(const std::vector<NamedTensor>& all) {
  std::vector<std::vector<NamedTensor>> groups;
  for (const NamedTensor& each : all) {
    const auto is_alike = [&](const std::vector<NamedTensor>& group) {
      const at::Tensor& first = group.front().tensor;
      return first.scalar_type() == each.tensor.scalar_type() &&
             first.requires_grad() == each.tensor.requires_grad();
    };
    const auto group = std::ranges::find_if(groups, is_alike);
    if (group == groups.end()) {
      groups.push_back({each});
    } else {
      group->push_back(each);
    }
  }
  return groups;
}

// Of all units different ones: the end of a long name alone may be that of another block.
std::string collective_name(const std::string& unit, std::size_t index) {
  if (unit.empty()) return "root unit";
  if (unit.size() <= kMostNameLetters) return unit;
  const std::string number = concat(index, "…");
  return number + unit.substr(unit.size() + number.size() - kMostNameLetters);
}

}  // namespace

std::string ReshardAfterForward::text() const {
  return ranks_ ? concat(*ranks_) : reshards_ ? "true" : "false";
}

ShardedModule::ShardedModule(std::shared_ptr<torch::nn::Module> module,
                             const FullyShardOptions& options)
    : module_(std::move(module)), options_(options) {
  if (!module_) throw UsageError("fully_shard: the module is null");
  check(options_);
  const ShardMesh mesh = shard_mesh_of(options_);
  options_.process_group = mesh.shard;
  options_.replicate_group = mesh.replicate;
  const ProcessGroup& group = mesh.shard;

  const auto shared_names = parameters_with_names(*module_, options_.ignored_parameters);
  check_shardable(group, shared_names);
  const std::vector<std::string> names = unit_names_of(*module_, options_.auto_wrap_policy);
  mesh.check_everywhere([&](const ProcessGroup& compared) {
    check_models_agree(compared, ReplicaState(*module_, {}), describe(options_, names),
                       "fully_shard");
  });
  options_.reshard_after_forward = resolve(options_.reshard_after_forward, group);
  const ProcessGroup reshard_group = reshard_group_of(options_, group);
  link_groups(mesh, reshard_group);
  buffers_ = ReplicaState(*module_, {}).buffer_tensors();
  if (options_.init_sync) {
    std::vector<at::Tensor> whole = buffers_;
    for (const at::Tensor& ignored : ignored_parameters_of(*module_, options_.ignored_parameters)) {
      whole.push_back(ignored);
    }
    mesh.broadcast(whole);
  }

  std::vector<std::vector<std::string>> all_names;
  for (const SharedParameter& each : shared_names) all_names.push_back(each.names);
  const std::vector<std::size_t> owners = plan_units(names, all_names);
  units_ = std::make_unique<ShardedUnits>(
      ShardedUnits::Options{.group = group,
                            .replicas = mesh.replicate,
                            .reshard_after_forward = options_.reshard_after_forward.reshards(),
                            .gradient_norm = options_.gradient_norm});
  for (std::size_t unit = 0; unit < names.size(); ++unit) {
    std::vector<NamedTensor> own;
    for (std::size_t i = 0; i < owners.size(); ++i) {
      if (owners[i] == unit) own.push_back({all_names[i].front(), shared_names[i].parameter});
    }
    if (own.empty()) continue;
    ShardedUnits::Unit made{.name = names[unit]};
    for (const auto& together : exchanged_together(own)) {
      made.flats.push_back(std::make_unique<FlatParameter>(
          together, *units_,
          FlatParameter::Options{.group = group,
                                 .replicas = mesh.replicate,
                                 .reshard_group = reshard_group,
                                 .name = collective_name(names[unit], unit),
                                 .init_sync = options_.init_sync,
                                 .param_dtype = options_.mp_policy.param_dtype,
                                 .reduce_dtype = options_.mp_policy.reduce_dtype,
                                 .gradient_divide_factor = options_.gradient_divide_factor}));
    }
    units_->add(std::move(made));
  }
  units_->attach_hooks();
  // What the whole module took: the C library would keep it in pieces too small for other tensors.
  release_freed_memory();
}

ShardedModule::~ShardedModule() = default;

ShardedModule::Forward::Forward(ShardedModule& module)
    : units_(*module.units_), exceptions_(std::uncaught_exceptions()) {
  module.sync_buffers();
  units_.begin_forward();
}

void ShardedModule::Forward::leave() {
  units_.leave_forward();
}

ShardedModule::Forward::~Forward() {
  units_.end_forward(std::uncaught_exceptions() > exceptions_);
}

bool ShardedModule::casts_inputs() const {
  return options_.mp_policy.param_dtype && options_.mp_policy.cast_forward_inputs;
}

at::Tensor ShardedModule::cast_input(const at::Tensor& input) const {
  if (!casts_inputs() || !input.defined() || !input.is_floating_point()) return input;
  return input.to(*options_.mp_policy.param_dtype);
}

ShardMesh ShardedModule::mesh() const {
  return {.shard = options_.process_group, .replicate = options_.replicate_group};
}

void ShardedModule::sync_buffers() const {
  if (units_->is_alone()) return;
  mesh().broadcast(buffers_);
}

void ShardedModule::backward(const at::Tensor& loss, const WeightedBackwardOptions& options) {
  constexpr const char* kOperation = "FullySharded::backward";
  check_weighted_loss(kOperation, options_.process_group, loss, options.weight);
  if (loss.scalar_type() != at::kFloat && loss.scalar_type() != at::kDouble) {
    throw UsageError(concat(kOperation, " on rank ", options_.process_group.rank(),
                            ": the loss is ", c10::toString(loss.scalar_type()),
                            ", which would round its weight; convert the model's outputs to "
                            "float32"));
  }
  units_->begin_weighted_pass(options.weight);
  // Such a loss may be NaN, as the mean of no samples is.
  std::optional<GradientHooks::Multiply> none;
  if (options.weight == 0) none.emplace(units_->hooks(), 0.0);
  loss.backward(at::full_like(loss, options.weight), options.retain_graph, options.create_graph);
}

void ShardedModule::shard_optimizer(torch::optim::Optimizer& optimizer) const {
  const ShardedMembers members(*units_);
  for (auto& group : optimizer.param_groups()) {
    for (at::Tensor& parameter : group.params()) {
      const FlatParameter::Member* const member = members.find(parameter);
      if (member == nullptr) continue;
      if (optimizer.state().count(parameter.unsafeGetTensorImpl()) > 0) {
        throw UsageError(concat("fully_shard on rank ", options_.process_group.rank(),
                                ": the optimizer has a state of '", member->name,
                                "' already; prepare it before its first step"));
      }
      parameter = member->piece;
    }
  }
}

std::vector<at::Tensor> ShardedModule::pieces_of(const std::vector<at::Tensor>& parameters) const {
  const ShardedMembers members(*units_);
  std::vector<at::Tensor> pieces;
  for (const at::Tensor& parameter : parameters) {
    const FlatParameter::Member* const member = members.find(parameter);
    pieces.push_back(member == nullptr ? parameter : member->piece);
  }
  return pieces;
}

double ShardedModule::gradient_norm() const {
  const auto norm = units_->gradient_norm();
  if (norm) return *norm;
  throw UsageError(concat("FullySharded on rank ", options_.process_group.rank(),
                          ": gradient_norm() before a backward pass has exchanged gradients, or "
                          "without {.gradient_norm = true}; shard the module with the option, and "
                          "call it after backward()"));
}

std::unique_ptr<GatheredState> ShardedModule::gathered_state(
    torch::optim::Optimizer& optimizer) const {
  sync_buffers();
  return std::make_unique<ShardedTrainingState>(*module_, *units_, optimizer);
}

std::unique_ptr<KeptShards> ShardedModule::kept_shards(torch::optim::Optimizer& optimizer) const {
  return std::make_unique<KeptShards>(*units_, optimizer);
}

void ShardedModule::drop_group() {
  units_->drop_pass();
}

void ShardedModule::compute_alone(const KeptShards* kept) {
  units_->compute_alone(kept ? [kept](const FlatParameter& flat) { return kept->values(flat); }
                             : ShardedUnits::ValuesOf());
}

void ShardedModule::regroup(const ProcessGroup& group, KeptShards& kept, bool is_final) {
  options_.process_group = group;
  if (kept.version() > 0) return kept.regroup(group, is_final);
  units_->regroup(group, [](const FlatParameter& flat) { return flat.own_values(); });
}

TensorDict ShardedModule::named_parameters() const {
  const ShardedMembers members(*units_);
  TensorDict result;
  for (const SharedParameter& each : parameters_with_names(*module_, {})) {
    const FlatParameter::Member* const member = members.find(each.parameter);
    result.emplace_back(each.names.front(), member == nullptr ? each.parameter : member->piece);
  }
  return result;
}

void ShardedModule::zero_grad(bool set_to_none) {
  units_->drop_gradients();
  for (auto& [name, tensor] : named_parameters()) {
    at::Tensor& gradient = tensor.mutable_grad();
    if (!gradient.defined()) continue;
    if (set_to_none) {
      gradient.reset();
    } else {
      gradient = gradient.detach();
      gradient.zero_();
    }
  }
}

void ShardedModule::set_requires_gradient_sync(bool sync) {
  units_->set_sync(sync);
}

TensorDict ShardedModule::full_state_dict(const FullStateDictOptions& options) const {
  return gather_full_state(*module_, *units_, !options.rank0_only || mesh().is_first());
}

void ShardedModule::load_full_state_dict(const TensorDict& values) {
  load_full_state(*module_, *units_, values);
}

std::vector<std::string> ShardedModule::unit_names() const {
  std::vector<std::string> names;
  for (const ShardedUnits::Unit& unit : units_->units()) names.push_back(unit.name);
  return names;
}

}  // namespace lockstep
