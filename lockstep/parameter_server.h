#pragma once

/// Parameter servers: parameters and embeddings on servers; updates are synchronous, or
/// asynchronous with bounded staleness.
/// Link lockstep::parameter_server.

#include "lockstep/parameter_server/training.h"
