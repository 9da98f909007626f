#pragma once

#include <filesystem>
#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep {

struct TraceOptions {
  /// Whose rank names file and process. Empty: the default group, where there is one, else none.
  ProcessGroup process_group = {};
  /// Note the shapes of operators' inputs.
  bool record_shapes = false;
};

/// Records what this process does while it lives, with LibTorch's profiler (Kineto): every
/// operator, forward and backward, on the CPU and on CUDA, and the ranges of
/// DistributedDataParallel, such as "lockstep::wait for bucket 3 (1.2 MB)". Each rank writes a file
/// of its own, trace.rank1.json of "trace.json" for rank 1, in which the process is called "rank
/// 1": for ui.perfetto.dev, chrome://tracing and what else reads PyTorch's traces.
///
///   for (int step = 0; step < steps; ++step) {
///     std::optional<Trace> trace;
///     if (step == 10) trace.emplace("trace.json");
///     train(step);
///   }
///
/// Memory and time grow with the number of operators: trace some steps. Threads: the training
/// thread; what other threads do is seen where autograd runs them. Not collective. Errors:
/// UsageError where a profiler runs already.
class Trace {
 public:
  explicit Trace(const std::filesystem::path& path, const TraceOptions& options = {});
  /// As finish(), with a warning in the log in place of an error.
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// Stops and writes the file, once. Errors: SystemError when it cannot be written.
  void finish();

  /// Of this rank.
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::string process_name_;
  bool is_running_ = false;
};

}  // namespace lockstep
