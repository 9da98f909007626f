#pragma once

#include <vector>

#include "lockstep/one_copy/internal/model_copy.h"
#include "lockstep/optim/internal/update_range.h"

namespace lockstep::inline internal {

/// Trust ratios of LAMB's step for parameters in one copy per machine, before the step writes
/// anything. Each rank sums the squares of the blocks that begin in its part; the sum over ranks
/// has the bits of one rank with the whole parameter.
/// Threads: one at a time.
/// Errors: as ModelCopy::begin_step.
class LambNorms {
 public:
  /// `whole`: parameter and states before the step, without a gradient; a null state is 0.
  void add(const ModelCopy::Place& place, const LambUpdate& update, const UpdateRange& whole);
  /// Ratios of the added parameters, in order. Collective, between begin_step() and commit_step().
  std::vector<double> ratios();

 private:
  struct Parameter {
    ModelCopy::Place place;
    std::vector<LambSquares> blocks;  ///< Zero where another rank has them.
  };
  void exchange(const std::shared_ptr<ModelCopy>& copy);

  std::vector<Parameter> parameters_;
};

}  // namespace lockstep::inline internal
