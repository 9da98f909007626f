#include "lockstep/os/affinity.h"

#include <sched.h>

namespace lockstep {
namespace {

// The kernel refuses a set smaller than its own; 8192 is the most that Linux supports.
constexpr int kMostCpus = 8192;

class CpuSet {
 public:
  CpuSet() : set_(CPU_ALLOC(kMostCpus)) {
    if (set_ != nullptr) CPU_ZERO_S(bytes(), set_);
  }
  ~CpuSet() { CPU_FREE(set_); }
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;

  void add(int cpu) {
    if (set_ != nullptr && cpu >= 0 && cpu < kMostCpus) CPU_SET_S(cpu, bytes(), set_);
  }
  bool read() { return set_ != nullptr && ::sched_getaffinity(0, bytes(), set_) == 0; }
  bool apply() const { return set_ != nullptr && ::sched_setaffinity(0, bytes(), set_) == 0; }
  std::vector<int> cpus() const {
    std::vector<int> result;
    for (int cpu = 0; cpu < kMostCpus; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes(), set_)) result.push_back(cpu);
    }
    return result;
  }

 private:
  static std::size_t bytes() { return CPU_ALLOC_SIZE(kMostCpus); }
  cpu_set_t* set_;
};

}  // namespace

std::vector<int> allowed_cpus() {
  CpuSet set;
  return set.read() ? set.cpus() : std::vector<int>();
}

bool pin_to_cpu(int cpu) {
  CpuSet set;
  set.add(cpu);
  return set.apply();
}

PinnedToCpu::PinnedToCpu(int cpu) : before_(allowed_cpus()), pinned_(pin_to_cpu(cpu)) {}

PinnedToCpu::~PinnedToCpu() {
  if (!pinned_ || before_.empty()) return;
  CpuSet set;
  for (const int cpu : before_) set.add(cpu);
  set.apply();
}

}  // namespace lockstep
