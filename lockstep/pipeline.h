#pragma once

/// Pipeline parallelism: a Sequential divided into stages, over ranks or devices.
/// Link lockstep::pipeline.

#include "lockstep/pipeline/pipeline.h"
#include "lockstep/pipeline/schedule.h"
