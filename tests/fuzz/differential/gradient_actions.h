#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "tests/fuzz/differential/plan.h"

namespace lockstep::differential {

/// What a program does with .grad between two passes.
void act_on_gradients(const Plan& plan, GradAction action,
                      const std::vector<at::Tensor>& parameters);

/// Copies gradients that share memory: LibTorch lets two be views of one where both parameters are
/// added to it by views, and what changes both in place, such as an accumulation, then does so
/// twice, without Lockstep too.
void separate_gradients(const std::vector<at::Tensor>& parameters);

}  // namespace lockstep::differential
