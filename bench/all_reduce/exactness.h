#pragma once

#include "bench/all_reduce/control.h"
#include "bench/all_reduce/subject_call.h"

namespace lockstep::bench {

/// Makes one call over numbers that follow from rank and index, and looks at every sum. Collective.
/// Errors: CommError naming the first wrong element.
void check_sums(const Control& control, SubjectCall& call, std::int64_t bytes);

}  // namespace lockstep::bench
