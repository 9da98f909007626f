#pragma once

#include <vector>

#include <sched.h>

namespace lockstep::inline internal {

/// A set of processors, in the kernel's format.
class CpuSet {
 public:
  CpuSet();
  explicit CpuSet(const std::vector<int>& cpus);
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;
  ~CpuSet() { CPU_FREE(set_); }

  void add(int cpu);
  /// Sets it to the calling thread's processors. Returns false if the system does not report them.
  bool read();
  /// Binds the calling thread, and threads that it starts later, to these processors. Returns
  /// false, with errno, if the system refuses. Safe between fork and exec.
  bool apply() const;
  std::vector<int> cpus() const;

 private:
  cpu_set_t* set_;
};

/// Processors that the calling thread may run on, ascending; empty if the system does not report
/// them.
std::vector<int> allowed_cpus();

/// Binds the calling thread to one processor while it lives; the destructor restores the processors
/// before.
/// Threads: created and destroyed by the same thread.
class PinnedToCpu {
 public:
  explicit PinnedToCpu(int cpu);
  ~PinnedToCpu();
  PinnedToCpu(const PinnedToCpu&) = delete;
  PinnedToCpu& operator=(const PinnedToCpu&) = delete;

  /// False if the system refused: the processor does not exist or is outside the cpuset.
  bool pinned() const { return pinned_; }

 private:
  std::vector<int> before_;
  bool pinned_ = false;
};

/// Binds the calling thread, and threads that it starts later, to one processor. Returns false if
/// the system refuses.
bool pin_to_cpu(int cpu);

}  // namespace lockstep::inline internal
