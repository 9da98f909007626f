#pragma once

#include <filesystem>
#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// Options of Trace.
struct TraceOptions {
  /// The group whose rank names file and process. Empty: the default group; without one, no rank.
  ProcessGroup process_group = {};
  /// Record the input shapes of operators.
  bool record_shapes = false;
};

/// Records this process during its life with LibTorch's profiler (Kineto): every operator, forward
/// and backward, on the CPU and on CUDA; and ranges of DistributedDataParallel such as
/// "lockstep::wait for bucket 3 (1.2 MB)". Each rank writes its own file: for "trace.json" rank 1
/// writes trace.rank1.json, with the process name "rank 1". Open it in ui.perfetto.dev,
/// chrome://tracing or other readers of PyTorch's traces.
///
/// ```cpp
/// for (int step = 0; step < steps; ++step) {
///   std::optional<Trace> trace;
///   if (step == 10) trace.emplace("trace.json");
///   train(step);
/// }
/// ```
///
/// Memory and time grow with the number of operators: trace a few steps. Not collective.
///
/// Threads: call from the training thread; operators of other threads are recorded if autograd runs
/// them.
/// Errors: UsageError if a profiler is already running.
class Trace {
 public:
  explicit Trace(const std::filesystem::path& path, const TraceOptions& options = {});
  /// As finish(), but logs a warning instead of throwing.
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// Stops recording and writes the file; later calls do nothing.
  /// Errors: SystemError if it cannot be written.
  void finish();

  /// Path of this rank's file.
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::string process_name_;
  bool is_running_ = false;
};

}  // namespace lockstep
