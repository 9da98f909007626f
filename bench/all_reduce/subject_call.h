#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bench/all_reduce/control.h"
#include "bench/all_reduce/result.h"
#include "tools/bench/bench_options.h"

namespace lockstep::bench {

/// What one rank does for one subject. Threads: one. Errors: those of the backend.
class SubjectCall {
 public:
  virtual ~SubjectCall() = default;
  virtual const Subject& subject() const = 0;

  /// From now on a call is one over the first `bytes` of its tensor.
  virtual void set_bytes(std::int64_t bytes) = 0;
  virtual void call() = 0;

  /// This rank's numbers, to be filled before a call and looked at after it; empty when the call
  /// leaves no sum.
  virtual std::span<float> values() = 0;
};

/// One for each backend and kind of memory that it has, for up to `bytes_max`. Collective.
/// Errors: UsageError for a backend that there is not, or that cannot work here.
std::vector<std::unique_ptr<SubjectCall>> make_backend_calls(const Control& control,
                                                             const BenchOptions& options,
                                                             std::int64_t bytes_max);

/// The kernel without synchronisation, a copy and an addition as in STREAM, and what ranks hand to
/// each other where tensors are private. Collective.
std::vector<std::unique_ptr<SubjectCall>> make_limit_calls(const Control& control,
                                                           std::int64_t bytes_max);

}  // namespace lockstep::bench
