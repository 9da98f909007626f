#include "lockstep/train/trainer.h"

#include "lockstep/job/internal/launched_place.h"
#include "lockstep/spawn/spawn.h"

namespace lockstep {

bool Trainer::is_global_zero() const {
  return launched_rank().value_or(0) == 0 && !repeats_first_process();
}

}  // namespace lockstep
