#pragma once

#include <vector>

#include <sched.h>

namespace lockstep::inline internal {

/// Processors, as the kernel takes them.
class CpuSet {
 public:
  CpuSet();
  explicit CpuSet(const std::vector<int>& cpus);
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;
  ~CpuSet() { CPU_FREE(set_); }

  void add(int cpu);
  /// Makes it that of the calling thread. False when the system does not tell.
  bool read();
  /// Keeps the calling thread, and those it starts from now on, on these processors. False, with
  /// errno, when the system refuses. Safe between fork and exec.
  bool apply() const;
  std::vector<int> cpus() const;

 private:
  cpu_set_t* set_;
};

/// Numbers of the processors that the calling thread may run on, ascending; empty when the system
/// does not tell.
std::vector<int> allowed_cpus();

/// Keeps the calling thread on one processor while it lives; the destructor gives it back the ones
/// it had. Threads: made and destroyed by the same thread.
class PinnedToCpu {
 public:
  explicit PinnedToCpu(int cpu);
  ~PinnedToCpu();
  PinnedToCpu(const PinnedToCpu&) = delete;
  PinnedToCpu& operator=(const PinnedToCpu&) = delete;

  /// False when the system refused: the processor does not exist, or is outside of the cpuset.
  bool pinned() const { return pinned_; }

 private:
  std::vector<int> before_;
  bool pinned_ = false;
};

/// Keeps the calling thread, and those it starts from now on, on one processor. Returns false when
/// the system refuses.
bool pin_to_cpu(int cpu);

}  // namespace lockstep::inline internal
