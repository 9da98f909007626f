#pragma once

/// Calls of named functions on other ranks, references to values there, gradients through calls.
/// Link lockstep::rpc.

#include "lockstep/rpc/autograd_context.h"
#include "lockstep/rpc/distributed_optimizer.h"
#include "lockstep/rpc/rpc.h"
