#pragma once

#include "tests/fuzz/differential/plan.h"
#include "tests/fuzz/differential/random.h"

namespace lockstep::differential {

/// Parameters and operators. The first operator is a linear one that every pass reaches.
void draw_graph(Random& random, Plan& plan);

/// Now and then a second complex parameter where there is one, so that a bucket has two.
void draw_second_complex(Random& random, Plan& plan);

/// Which ranks leave out which operators in which steps, and where they sleep.
void draw_absences(Random& random, Plan& plan);

}  // namespace lockstep::differential
