#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/all_reduce/control.h"
#include "bench/all_reduce/result.h"
#include "bench/all_reduce/subject_call.h"
#include "tools/bench/bench_options.h"

namespace lockstep::bench {

struct Cpus {
  int count = 1;
  /// Those of ranks 0 and 1, between which distance is measured.
  int first = 0;
  int second = 0;
};

struct Measurements {
  std::vector<Sample> samples;
  double round_trip_ns_min = 0;
  double round_trip_ns_max = 0;
};

/// Checks every subject at every size, then times them in turns: in each round all sizes, at each
/// size all subjects, with the processors' distance before and after. Collective; the samples are
/// the same on all ranks, the distances rank 0's. Errors: those of check_sums and the backends.
Measurements measure(const Control& control, const BenchOptions& options, const Cpus& cpus,
                     const std::vector<std::unique_ptr<SubjectCall>>& calls);

}  // namespace lockstep::bench
