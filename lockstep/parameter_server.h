#pragma once

/// Parameters and embeddings on servers, synchronous or with bounded staleness.
/// Link lockstep::parameter_server.

#include "lockstep/parameter_server/training.h"
