#pragma once

#include <functional>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "lockstep/snapshot/snapshot.h"
#include "lockstep/snapshot/state_dict.h"

namespace lockstep::inline internal {

/// A tensor of that shape, strides and dtype without memory, which stands for one that is
/// elsewhere: on several ranks, or in a file. Strides must be those of a dense tensor.
at::Tensor absent_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype);

/// Whether a tensor is such a one, and not just empty.
bool is_absent(const at::Tensor& tensor);

/// Takes the tensor for which an absent one stands; `whole` makes it, alone in its memory.
using TakeWhole =
    std::function<void(const at::Tensor& absent, const std::function<at::Tensor()>& whole)>;
/// Calls it for each absent tensor. Collective.
using GatherWhole = std::function<void(const TakeWhole& take)>;

/// A model and an optimizer of which each rank has pieces: snapshots store them whole, and hold the
/// whole of one unit at a time while they do.
/// Threads: the training thread. Errors: as Work::wait.
class GatheredState {
 public:
  virtual ~GatheredState() = default;

  /// As state_dict() and optimizer_state_dict() of what is not sharded, with absent tensors in the
  /// places of those that no rank holds. Errors: UsageError as optimizer_state_dict().
  virtual TensorDict model() const = 0;
  virtual c10::IValue optimizer() = 0;
  /// Calls `take` with each absent tensor of these, on every rank. Collective.
  virtual void gather(const TakeWhole& take) const = 0;

  /// Reads this rank's pieces of a snapshot, whose tensors may be absent; `read` reads one of
  /// those. Changes nothing. Errors: UsageError where it is of another model or optimizer; those of
  /// `read`.
  virtual void read(const Snapshot& snapshot,
                    const std::function<at::Tensor(const at::Tensor& absent)>& read,
                    const std::string& source) = 0;
  /// Puts in place what it has read.
  virtual void take_over() = 0;
};

/// The same tree with the tensors themselves in place of absent ones. Collective.
c10::IValue with_whole_tensors(const c10::IValue& tree, const GatheredState& state);

/// Calls `write`, which is to call what it is given; where it fails before, this rank still does
/// its part of the collectives. Collective.
void gather_while(const GatheredState& state, const std::function<void(const GatherWhole&)>& write);

}  // namespace lockstep::inline internal
