#pragma once

/// Tensor parallelism: layers whose weights are sharded over the ranks of a group.
/// Link lockstep::lockstep.

#include "lockstep/nn/tensor_parallel.h"
