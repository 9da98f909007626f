#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/work.h"
#include "lockstep/ddp/replica_check.h"
#include "lockstep/fully_shard/internal/flat_layout.h"
#include "lockstep/fully_shard/internal/parameter_watch.h"

namespace lockstep::inline internal {

/// Parameters of one unit, all of one dtype and all trained or all frozen: they lie one behind the
/// other in one flat tensor, of which each rank keeps a chunk. While they are gathered the module's
/// tensors have their values; otherwise these have shapes and no memory.
///
/// Where the ranks share memory, and parameters are gathered in their own dtype, all chunks lie
/// there side by side: gathering waits for the ranks, and copies nothing. A rank may change its
/// chunk once no rank reads parameters any more (reads_other_chunks).
/// Threads: one at a time. Lifetime: keeps the group and the module's tensors alive.
/// Errors: as Work::wait.
class FlatParameter {
 public:
  struct Member {
    std::string name;
    at::Tensor parameter;  ///< the module's
    /// What the optimizer updates: this rank's elements, in the order in which they lie in memory.
    at::Tensor piece;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
  };

  struct Options {
    ProcessGroup group;
    /// The ranks with the same chunk, whose gradients are summed, too; empty: none.
    ProcessGroup replicas = {};
    /// Consecutive ranks of `group`, over which the values of keep_part() are gathered; empty: they
    /// are not kept.
    ProcessGroup reshard_group = {};
    std::string name;  ///< of its collectives
    bool init_sync = true;
    /// Of the gathered parameters, and in which gradients are summed; unset: the parameters' own,
    /// and that of the gradients.
    std::optional<at::ScalarType> param_dtype = {};
    std::optional<at::ScalarType> reduce_dtype = {};
    /// Unset: the number of ranks, in all replicas.
    std::optional<double> gradient_divide_factor = {};
  };

  /// Takes the parameters' memory from them. Collective.
  FlatParameter(const std::vector<NamedTensor>& parameters, ParameterWatcher& watcher,
                Options options);

  const std::vector<Member>& members() const { return members_; }
  bool is_trained() const { return members_.front().piece.requires_grad(); }
  at::ScalarType gathered_dtype() const { return full_.scalar_type(); }
  /// The name of the parameter that a view of the gathered tensor shows.
  const std::string& name_of(const at::Tensor& view) const;
  bool holds(const at::Tensor& view) const { return full_.storage().is_alias_of(view.storage()); }
  /// Changes when the optimizer, or the program, writes to the pieces.
  std::int64_t version() const;
  /// For autograd: the module's tensors have other values than before.
  void mark_changed() const;

  /// Between the two the values arrive; collective, over the ranks of reshard_group where values
  /// are kept.
  void begin_gather();
  void end_gather();
  /// In between, any number of times: lets values arrive meanwhile.
  void advance_gather() const { gathering_.is_completed(); }
  /// In place of end_gather(): waits for the values and drops them.
  void drop_gather() noexcept;
  void reshard();
  /// Of a gathered one, before reshard(): keeps this rank's part of the values of reshard_group, so
  /// that the next gather needs no other ranks. Nothing without such a group.
  void keep_part();
  void drop_part() noexcept { kept_.reset(); }
  /// Whether values arrive while this rank computes: where memory is shared the calling thread
  /// moves them.
  bool gathers_in_background() const;
  /// In place of a gather, without the other ranks: the module's tensors show `values`, elements()
  /// of them.
  void gather_alone(const at::Tensor& values);
  /// Whether the module's tensors show the memory of other ranks' chunks.
  bool reads_other_chunks() const { return common_.defined() && options_.group.world_size() > 1; }

  /// Takes the gradients of the module's tensors, reduces them over all ranks, multiplies the
  /// average by `scale` and keeps this rank's part, which add up until set_gradients. Collective.
  void reduce_gradients(double scale = 1);
  /// Of each member: kNone, kReduced since the last set_gradients, or kLeft in the module's tensor.
  enum GradientState : std::uint8_t { kNone, kReduced, kLeft };
  std::vector<std::uint8_t> gradient_states() const;
  /// Adds what reduce_gradients left to the gradients of the pieces, of those members that have
  /// one on any rank.
  void set_gradients(const std::uint8_t* has_gradient);
  /// Of the module's tensors.
  void drop_gradients();
  /// Of the gradients of the pieces.
  double sum_of_squares() const;

  /// This rank's pieces of all members, or of something that is kept for each of their elements, of
  /// one dtype; undefined: zeros. The flat tensor of all ranks' pieces. Collective.
  at::Tensor gather_pieces(const std::vector<at::Tensor>& pieces) const;
  /// Of member i, what such a flat tensor has, in the parameter's shape and strides, as a copy.
  at::Tensor value_in(const at::Tensor& flat, std::size_t i) const;
  /// Of member i, this rank's elements of a tensor of the whole parameter's shape, as a copy.
  at::Tensor piece_of(std::size_t i, const at::Tensor& value) const;

  /// Number of elements of the flat tensor of a single rank, without padding at its end.
  std::int64_t elements() const { return layout_.parameters.back().end; }
  /// Where this rank's chunk lies in it, and this rank's piece of member i.
  ElementRange own_elements() const { return layout_.elements_of(options_.group.rank()); }
  /// Values of this rank's chunk.
  at::Tensor own_values() const { return shard_.narrow(0, 0, own_elements().size()); }
  ElementRange own_elements(std::size_t i) const {
    return layout_.elements_of(options_.group.rank(), i);
  }

  /// Forgets the pass that was under way; its group has failed. Gradients that it has not set are
  /// lost.
  void drop_pass() noexcept;
  /// Collectives use another group from now on; before reshard_over().
  void use_group(const ProcessGroup& group) { options_.group = group; }
  /// Divides `values`, elements() of them, among the ranks of the group: pieces are the same
  /// tensors with other elements; their gradients are zeros where they were defined. Collective.
  void reshard_over(const at::Tensor& values);

 private:
  at::Tensor lay_out(const std::vector<at::Tensor>& tensors, at::ScalarType dtype) const;
  at::Tensor place_in(const at::Tensor& flat, std::size_t i) const;
  at::Tensor in_order(std::size_t i, const at::Tensor& tensor) const;
  at::Tensor own_part(const at::Tensor& chunk, std::size_t i) const;
  const ProcessGroup& gather_group() const;
  bool is_in_common_memory(at::ScalarType dtype, at::ScalarType gathered) const;
  int ranks() const;
  bool group_divides() const;
  void fill_window(const at::Tensor& flat, ElementRange window,
                   const std::vector<at::Tensor>& gradients, double factor) const;

  Options options_;
  FlatLayout layout_;
  std::vector<Member> members_;
  at::Tensor common_;  ///< [total], the chunks of all ranks; undefined: each has its own alone
  at::Tensor shard_;   ///< [chunk]
  at::Tensor full_;    ///< [total], its storage without memory unless gathered
  at::Tensor kept_;    ///< of keep_part(); undefined: nothing
  Work gathering_;
  std::optional<StorageWatch> watch_;
  at::Tensor gradient_;  ///< [chunk], of this backward pass; undefined: none yet
  std::vector<bool> is_reduced_;
};

}  // namespace lockstep::inline internal
