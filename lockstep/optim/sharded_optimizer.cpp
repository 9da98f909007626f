#include "lockstep/optim/sharded_optimizer.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>
#include <torch/optim/optimizer.h>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/check.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/internal/exchange_values.h"
#include "lockstep/optim/internal/consolidate_state.h"
#include "lockstep/optim/internal/parameter_exchange.h"
#include "lockstep/optim/internal/shard_plan.h"

namespace lockstep {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

const void* address_of(const at::Tensor& parameter) {
  return parameter.unsafeGetTensorImpl();
}

std::vector<const void*> addresses_of(const OptimizerParamGroup& group) {
  std::vector<const void*> addresses;
  for (const at::Tensor& parameter : group.params()) addresses.push_back(address_of(parameter));
  return addresses;
}

// One line a parameter.
std::string describe(const Optimizer& optimizer, std::size_t first_group) {
  std::ostringstream text;
  const auto& groups = optimizer.param_groups();
  for (std::size_t g = first_group; g < groups.size(); ++g) {
    for (std::size_t i = 0; i < groups[g].params().size(); ++i) {
      const at::Tensor& parameter = groups[g].params()[i];
      text << "parameter " << i << " of group " << g << " " << parameter.dtype() << " "
           << parameter.sizes() << " strides " << parameter.strides()
           << (parameter.requires_grad() ? "" : " frozen") << "\n";
    }
  }
  return text.str();
}

struct NamedParameter {
  at::Tensor parameter;
  std::string name;
};

// The memory of a storage, of which parameters take parts.
class TakenMemory {
 public:
  explicit TakenMemory(const std::vector<NamedParameter>& of_storage) {
    unit_ = std::ranges::min(of_storage, {}, [](const NamedParameter& each) {
              return each.parameter.element_size();
            }).parameter.element_size();
    const auto bytes = static_cast<std::int64_t>(of_storage[0].parameter.storage().nbytes());
    is_taken_ = at::zeros({(bytes + unit_ - 1) / unit_}, at::kByte);
  }

  // False where another has a part of it.
  bool take(const at::Tensor& parameter) {
    const std::int64_t units = parameter.element_size() / unit_;
    std::vector<std::int64_t> sizes = {units};
    std::vector<std::int64_t> strides = {1};
    for (std::int64_t dim = 0; dim < parameter.dim(); ++dim) {
      if (parameter.stride(dim) == 0) continue;
      sizes.push_back(parameter.size(dim));
      strides.push_back(parameter.stride(dim) * units);
    }
    const at::Tensor part =
        is_taken_.as_strided(sizes, strides, parameter.storage_offset() * units);
    if (part.any().item<bool>()) return false;
    part.fill_(1);
    return true;
  }

 private:
  std::int64_t unit_;  // bytes: those of the smallest element
  at::Tensor is_taken_;
};

[[noreturn]] void refuse_common_memory(const ProcessGroup& group,
                                       const std::vector<NamedParameter>& of_storage,
                                       const NamedParameter& last) {
  const auto before = std::ranges::find_if(of_storage, [&](const NamedParameter& each) {
    TakenMemory memory(of_storage);
    return memory.take(each.parameter) && !memory.take(last.parameter);
  });
  throw UsageError(concat("ShardedOptimizer on rank ", group.rank(), ": ", last.name,
                          " has memory in common with ", before->name,
                          ", which another rank may update; give one of them, or make it a tensor "
                          "of its own"));
}

// Two ranks would update the memory that two parameters have in common, and one update be lost.
void check_memory(const ProcessGroup& group, const Optimizer& optimizer) {
  std::map<const void*, std::vector<NamedParameter>> by_storage;
  std::unordered_set<const void*> seen;
  const auto& groups = optimizer.param_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t i = 0; i < groups[g].params().size(); ++i) {
      const at::Tensor& parameter = groups[g].params()[i];
      if (parameter.numel() == 0 || !seen.insert(address_of(parameter)).second) continue;
      by_storage[parameter.storage().unsafeGetStorageImpl()].push_back(
          {.parameter = parameter, .name = concat("parameter ", i, " of group ", g)});
    }
  }
  for (const auto& [storage, of_storage] : by_storage) {
    if (of_storage.size() == 1) continue;
    TakenMemory memory(of_storage);
    for (const NamedParameter& each : of_storage) {
      if (!memory.take(each.parameter)) refuse_common_memory(group, of_storage, each);
    }
  }
}

void check_agreement(const ProcessGroup& group, const Optimizer& optimizer,
                     std::size_t first_group) {
  if (group.world_size() == 1) return;
  const std::string ours = describe(optimizer, first_group);
  const std::string reference = broadcast_text(group, ours, 0);
  run_on_all(group, "ShardedOptimizer: compare the parameters with rank 0's", [&] {
    check_memory(group, optimizer);
    if (ours == reference) return;
    std::istringstream our_lines(ours);
    std::istringstream reference_lines(reference);
    std::string our_line;
    std::string reference_line;
    do {
      if (!std::getline(our_lines, our_line)) our_line = "nothing more";
      if (!std::getline(reference_lines, reference_line)) reference_line = "nothing more";
    } while (our_line == reference_line);
    throw UsageError(concat("ShardedOptimizer on rank ", group.rank(), ": it has ", our_line,
                            " where rank 0 has ", reference_line,
                            "; give every rank the same parameters in the same groups"));
  });
}

// While it lives the optimizer's groups hold the parameters of one rank only.
class OwnParametersOnly {
 public:
  OwnParametersOnly(Optimizer& optimizer, const OptimizerShards& shards) : optimizer_(optimizer) {
    for (OptimizerParamGroup& group : optimizer.param_groups()) {
      std::vector<at::Tensor> own;
      for (const at::Tensor& parameter : group.params()) {
        if (shards.keeps_state_of(parameter)) own.push_back(parameter);
      }
      all_.push_back(std::exchange(group.params(), std::move(own)));
    }
  }
  ~OwnParametersOnly() {
    for (std::size_t g = 0; g < all_.size(); ++g) {
      optimizer_.param_groups()[g].params() = std::move(all_[g]);
    }
  }
  OwnParametersOnly(const OwnParametersOnly&) = delete;
  OwnParametersOnly& operator=(const OwnParametersOnly&) = delete;

 private:
  Optimizer& optimizer_;
  std::vector<std::vector<at::Tensor>> all_;
};

}  // namespace

struct OptimizerShards::State {
  ProcessGroup group;
  bool parameters_as_bucket_view;
  /// Every parameter once, in the order of the groups, and where it is by its address.
  std::vector<OwnedParameter> parameters = {};
  std::unordered_map<const void*, std::size_t> places = {};
  /// Of each planned group the addresses of its parameters, and what the plan was made of: those
  /// that no group before had.
  std::vector<std::vector<const void*>> planned = {};
  std::vector<std::vector<ShardCandidate>> candidates = {};
  /// Which parameters the exchange covers.
  std::vector<bool> exchanged = {};
  std::optional<ParameterExchange> exchange = {};

  void check_planned_groups(const Optimizer& optimizer) const;
  void drop_states_of_others(Optimizer& optimizer) const;
  void plan_exchange();
};

OptimizerShards::OptimizerShards(Optimizer& optimizer, const ShardedOptimizerOptions& options)
    : state_(new State{
          .group = options.process_group ? options.process_group : default_process_group(),
          .parameters_as_bucket_view = options.parameters_as_bucket_view}) {
  plan(optimizer);
}

OptimizerShards::~OptimizerShards() = default;
OptimizerShards::OptimizerShards(OptimizerShards&&) noexcept = default;
OptimizerShards& OptimizerShards::operator=(OptimizerShards&&) noexcept = default;

const ProcessGroup& OptimizerShards::process_group() const {
  return state_->group;
}

void OptimizerShards::plan(Optimizer& optimizer) {
  state_->check_planned_groups(optimizer);
  const auto& groups = optimizer.param_groups();
  const std::size_t first_new = state_->planned.size();
  if (groups.size() == first_new && state_->exchange) return;
  check_agreement(state_->group, optimizer, first_new);

  const std::size_t first_parameter = state_->parameters.size();
  for (std::size_t g = first_new; g < groups.size(); ++g) {
    state_->planned.push_back(addresses_of(groups[g]));
    std::vector<ShardCandidate>& candidates = state_->candidates.emplace_back();
    for (const at::Tensor& parameter : groups[g].params()) {
      const std::size_t place = state_->parameters.size();
      if (!state_->places.emplace(address_of(parameter), place).second) continue;
      state_->parameters.push_back({.tensor = parameter});
      candidates.push_back({.bytes = static_cast<std::int64_t>(parameter.nbytes()),
                            .is_frozen = !parameter.requires_grad()});
    }
  }
  const auto owners = plan_shards(state_->candidates, state_->group.world_size());
  std::size_t next = first_parameter;
  for (std::size_t g = first_new; g < owners.size(); ++g) {
    for (const int owner : owners[g]) state_->parameters[next++].owner = owner;
  }
  state_->drop_states_of_others(optimizer);
  state_->exchange.reset();
  state_->plan_exchange();
}

// What a group holds may not change under the plan: the state would stay with the former owner.
void OptimizerShards::State::check_planned_groups(const Optimizer& optimizer) const {
  const auto& groups = optimizer.param_groups();
  for (std::size_t g = 0; g < planned.size(); ++g) {
    if (g < groups.size() && addresses_of(groups[g]) == planned[g]) continue;
    throw UsageError(
        concat("ShardedOptimizer on rank ", group.rank(), ": the parameters of group ", g,
               " were replaced; add new parameters as a new group with add_param_group"));
  }
}

void OptimizerShards::State::drop_states_of_others(Optimizer& optimizer) const {
  for (const auto& [parameter, owner] : parameters) {
    if (owner != group.rank()) optimizer.state().erase(parameter.unsafeGetTensorImpl());
  }
}

// A frozen parameter stays as it is, unless a gradient is left from before it was frozen.
void OptimizerShards::State::plan_exchange() {
  std::vector<bool> covers;
  for (const auto& [parameter, owner] : parameters) {
    covers.push_back(parameters_as_bucket_view || parameter.requires_grad() ||
                     parameter.grad().defined());
  }
  if (exchange && covers == exchanged) return;
  exchanged = covers;
  std::vector<OwnedParameter> covered;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (exchanged[i]) covered.push_back(parameters[i]);
  }
  exchange.emplace(group, covered,
                   ParameterExchange::Options{.as_bucket_view = parameters_as_bucket_view});
}

void OptimizerShards::step(Optimizer& optimizer, const std::function<void()>& step_own) {
  plan(optimizer);
  state_->plan_exchange();
  {
    const OwnParametersOnly own_parameters(optimizer, *this);
    step_own();
  }
  state_->exchange->run();
}

bool OptimizerShards::keeps_state_of(const at::Tensor& parameter) const {
  const auto found = state_->places.find(address_of(parameter));
  // Of a group that is not planned yet everything is kept until it is.
  return found == state_->places.end() ||
         state_->parameters[found->second].owner == state_->group.rank();
}

c10::IValue OptimizerShards::consolidated_state_dict(const Optimizer& optimizer,
                                                     std::optional<int> target) const {
  return consolidate_state(optimizer, state_->parameters, state_->group, target);
}

void OptimizerShards::refuse_archive() const {
  throw UsageError(concat("ShardedOptimizer on rank ", state_->group.rank(),
                          ": an archive of LibTorch would hold this rank's shard only; use "
                          "SnapshotDirectory, or consolidated_state_dict() and "
                          "load_optimizer_state_dict()"));
}

}  // namespace lockstep
