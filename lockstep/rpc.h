#pragma once

/// Remote procedure calls by name, references to remote values, backward passes through calls.
/// Link lockstep::rpc.

#include "lockstep/rpc/autograd_context.h"
#include "lockstep/rpc/distributed_optimizer.h"
#include "lockstep/rpc/rpc.h"
