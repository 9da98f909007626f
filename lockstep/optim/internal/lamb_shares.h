#pragma once

#include <memory>
#include <vector>

#include "lockstep/one_copy/internal/model_copy.h"
#include "lockstep/optim/internal/update_range.h"

namespace lockstep::inline internal {

/// LAMB's step of parameters of which ranks have one copy per machine. Each rank updates its share;
/// the trust ratio of a parameter is that of the whole, whose sums of squares ranks put together
/// block by block, so that the bits are those of replicas.
/// Threads: one. Errors: as ModelCopy.
class LambShares {
 public:
  /// `whole`: the parameter's, in the copy's shared memory, without a gradient.
  void add(const ModelCopy::Place& place, const LambUpdate& update, double lr,
           const UpdateRange& whole) {
    shares_.push_back({.place = place, .update = update, .lr = lr, .whole = whole});
  }
  /// Updates what was added, and forgets it. Meets all ranks twice.
  void run();

 private:
  struct Share {
    ModelCopy::Place place;
    LambUpdate update;
    double lr;
    UpdateRange whole;
    std::vector<LambSquares> blocks = {};  ///< Zero where another rank has them.
  };
  static void update_states(Share& share);
  static void add_divided_blocks(Share& share);
  void exchange_blocks(const std::shared_ptr<ModelCopy>& copy);

  std::vector<Share> shares_;
};

}  // namespace lockstep::inline internal
