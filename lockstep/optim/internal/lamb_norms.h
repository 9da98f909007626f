#pragma once

#include <vector>

#include "lockstep/one_copy/internal/model_copy.h"
#include "lockstep/optim/internal/update_range.h"

namespace lockstep::inline internal {

/// The trust ratios of LAMB's step, of parameters of which ranks have one copy per machine, before
/// anything of the step is written. Each rank adds up the squares of the blocks that begin in its
/// part; the sum over ranks, in which each number is of one, has the bits of a rank that has the
/// whole parameter.
/// Threads: one.
/// Errors: as ModelCopy::begin_step.
class LambNorms {
 public:
  /// `whole`: parameter and states before the step, without a gradient; a state that is null is 0.
  void add(const ModelCopy::Place& place, const LambUpdate& update, const UpdateRange& whole);
  /// Of what was added, in its order. Collective, between begin_step() and commit_step().
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
