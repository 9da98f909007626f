#pragma once

/// Fully sharded data parallelism: models, gradients and optimizer state sharded over ranks.
/// Link lockstep::lockstep.

#include "lockstep/fully_shard/fully_shard.h"
#include "lockstep/fully_shard/sharded_module.h"
