#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/replica.h"
#include "lockstep/snapshot/state_dict.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep {

inline namespace internal {
class GatheredState;
class KeptShards;
class ShardedUnits;
struct ShardMesh;
}  // namespace internal

/// Whether a submodule is a unit of its own. `name`: as in named_modules().
using AutoWrapPolicy =
    std::function<bool(const std::string& name, const torch::nn::Module& module)>;

/// Names are those of torch.distributed.fsdp.MixedPrecisionPolicy. Shards, and what the optimizer
/// sees, keep the dtype of the parameters.
struct MixedPrecisionPolicy {
  /// Of gathered floating-point parameters, in forward and backward. Unset: their own.
  std::optional<at::ScalarType> param_dtype = {};
  /// In which gradients are summed over ranks. Unset: param_dtype.
  std::optional<at::ScalarType> reduce_dtype = {};
  /// Convert the floating-point tensors among the arguments of forward to param_dtype.
  bool cast_forward_inputs = true;
};

/// What a rank holds of a unit between its forward and its backward: true, false or a number, as in
/// FullyShardOptions::reshard_after_forward.
class ReshardAfterForward {
 public:
  template <std::same_as<bool> Bool>
  // NOLINTNEXTLINE(google-explicit-constructor)
  constexpr ReshardAfterForward(Bool reshards) : reshards_(reshards) {}
  template <std::integral Number>
  requires(!std::same_as<Number, bool>)
      // NOLINTNEXTLINE(google-explicit-constructor)
      constexpr ReshardAfterForward(Number ranks)
      : reshards_(true), ranks_(static_cast<std::int64_t>(ranks)) {}

  /// Whether it is not false.
  constexpr bool reshards() const { return reshards_; }
  /// The number, if it is one.
  constexpr std::optional<std::int64_t> ranks() const { return ranks_; }
  /// "true", "false" or the number.
  std::string text() const;

 private:
  bool reshards_;
  std::optional<std::int64_t> ranks_;
};

/// Which ranks hold the same shard, and which different ones (HSDP). Ranks in containers that share
/// no memory are on machines of their own.
enum class HybridShard : std::uint8_t {
  kNone,                ///< All ranks hold different shards.
  kShardInMachines,     ///< The ranks of a machine do: each machine has a replica.
  kReplicateInMachines  ///< Ranks of different machines do: those of a machine hold the same.
};

/// Names are those of PyTorch's fully_shard and FullyShardedDataParallel, and defaults where not
/// said otherwise. All ranks must give the same.
struct FullyShardOptions {
  /// The ranks to shard over. Empty: the default group.
  ProcessGroup process_group = {};
  /// The ranks that hold the same shard as this one: the dimension "replicate" of FSDP2's mesh, as
  /// process_group is its dimension "shard". The two form a grid. Empty: one replica.
  ProcessGroup replicate_group = {};
  /// Divides process_group, by machine, into the two groups of such a grid; all machines must have
  /// the same number of ranks.
  HybridShard hybrid_shard = HybridShard::kNone;
  /// Submodules whose parameters are gathered together and apart from others: those for which this
  /// returns true. What lies in none of them is gathered with the module itself. Empty: all of the
  /// module is one unit.
  AutoWrapPolicy auto_wrap_policy = {};
  /// Free a unit's gathered parameters after its forward, and gather them again in backward. With
  /// false they stay gathered from forward to backward. With a number N, which divides the number
  /// of ranks of process_group, each rank keeps 1/N of them, and in backward every N consecutive
  /// ranks gather from each other; 1 is false, with a warning. Where shards lie in shared memory a
  /// number above 1 is true. Parameters of the module itself stay gathered anyway.
  ReshardAfterForward reshard_after_forward = true;
  MixedPrecisionPolicy mp_policy = {};
  /// Gradients are summed over ranks, those of all replicas, and divided by this. Unset: the number
  /// of ranks.
  std::optional<double> gradient_divide_factor = {};
  /// Names, as in named_parameters(), of parameters that every rank keeps whole. Nothing is done
  /// to their gradients.
  std::vector<std::string> ignored_parameters = {};
  /// Compute the L2 norm of all gradients at the end of each backward() that exchanges them, for
  /// gradient_norm().
  bool gradient_norm = false;
  /// At construction give every rank rank 0's parameters and buffers. Without it they must be the
  /// same already. PyTorch's fully_shard leaves them as they are. Either way every forward, and
  /// every save, begins with rank 0's buffers.
  bool init_sync = true;
};

/// Of full_state_dict().
struct FullStateDictOptions {
  /// Ranks other than 0 get an empty one.
  bool rank0_only = false;
};

/// The part of FullySharded that does not depend on the module's type.
/// Threads, lifetime, errors: as FullySharded.
class ShardedModule {
 public:
  ShardedModule(std::shared_ptr<torch::nn::Module> module, const FullyShardOptions& options);
  ~ShardedModule();
  ShardedModule(const ShardedModule&) = delete;
  ShardedModule& operator=(const ShardedModule&) = delete;

  /// Lasts as long as a forward.
  class Forward {
   public:
    explicit Forward(ShardedModule& module);
    ~Forward();
    /// After what the module's function returned. Collective.
    void leave();
    Forward(const Forward&) = delete;
    Forward& operator=(const Forward&) = delete;

   private:
    ShardedUnits& units_;
    int exceptions_;
  };

  /// Whether forward converts its arguments.
  bool casts_inputs() const;
  /// The argument of forward in the dtype of gathered parameters, where it is converted.
  at::Tensor cast_input(const at::Tensor& input) const;

  /// Gives every rank rank 0's buffers. Collective.
  void sync_buffers() const;
  /// As FullySharded::backward(). Collective.
  void backward(const at::Tensor& loss, const WeightedBackwardOptions& options);
  /// As FullySharded::named_parameters().
  TensorDict named_parameters() const;
  /// Gives the optimizer this rank's pieces in place of the module's own parameters.
  /// Errors: UsageError where it has made steps with those.
  void shard_optimizer(torch::optim::Optimizer& optimizer) const;
  /// Of this module and an optimizer of its parameters, for SnapshotDirectory. Refers to both.
  /// Collective: synchronizes buffers, of which ranks may save different ones.
  std::unique_ptr<internal::GatheredState> gathered_state(torch::optim::Optimizer& optimizer) const;
  /// Of this module and an optimizer of its parameters, for recovery. Refers to both.
  std::unique_ptr<internal::KeptShards> kept_shards(torch::optim::Optimizer& optimizer) const;
  /// Forgets the pass that was under way; the group has failed.
  void drop_group();
  /// From now on forward uses the parameters in `kept` and no other rank, and gradients are
  /// discarded. Null: no longer.
  void compute_alone(const internal::KeptShards* kept);
  /// Divides the parameters among the ranks of another group: those in `kept`, as
  /// KeptShards::regroup, if there is a state; else this rank's, which has all of them. Collective.
  void regroup(const ProcessGroup& group, internal::KeptShards& kept, bool is_final);
  /// In the same order as `parameters`: this rank's piece of each that is the module's and sharded,
  /// others as they are.
  std::vector<at::Tensor> pieces_of(const std::vector<at::Tensor>& parameters) const;
  /// As FullySharded::gradient_norm().
  double gradient_norm() const;
  /// As FullySharded::zero_grad().
  void zero_grad(bool set_to_none);
  /// As FullySharded::set_requires_gradient_sync().
  void set_requires_gradient_sync(bool sync);
  /// As FullySharded::full_state_dict(). Collective.
  TensorDict full_state_dict(const FullStateDictOptions& options) const;
  /// As FullySharded::load_full_state_dict().
  void load_full_state_dict(const TensorDict& values);
  /// As FullySharded::unit_names().
  std::vector<std::string> unit_names() const;
  /// The ranks that have the shards of one replica.
  const ProcessGroup& process_group() const { return options_.process_group; }
  /// The ranks that hold the same shards; empty: there is one replica.
  const ProcessGroup& replicate_group() const { return options_.replicate_group; }

 private:
  ShardMesh mesh() const;

  std::shared_ptr<torch::nn::Module> module_;
  FullyShardOptions options_;
  std::unique_ptr<ShardedUnits> units_;
  std::vector<at::Tensor> buffers_;
};

}  // namespace lockstep
