#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

/// Some steps of a training, numbered from 1 as in its metrics.
struct StepRange {
  std::int64_t first = 0;
  /// The one after the last.
  std::int64_t end = 0;

  bool contains(std::int64_t step) const { return first <= step && step < end; }

  /// "10:13": steps 10, 11 and 12, as a slice in Python. `what`: for errors, as "TraceCallback:
  /// steps". Errors: UsageError for other text, and for no step.
  static StepRange parse(const std::string& text, const std::string& what);
};

}  // namespace lockstep
