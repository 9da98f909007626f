#pragma once

#include "lockstep/program/program_options.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

/// Makes a Trainer's options those of the program, under their own names: --max-duration=20ep,
/// max_duration = "20ep" in a file, LOCKSTEP_TRAINER_MAX_DURATION; of `init` and `ddp` what is a
/// plain value, as ddp.bucket_cap_mb. And --quiet. `options` must outlive `program`.
void add_trainer_options(ProgramOptions& program, TrainerOptions& options);

}  // namespace lockstep
