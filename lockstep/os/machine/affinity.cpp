#include "lockstep/os/machine/affinity.h"

#include <cerrno>

namespace lockstep::inline internal {
namespace {

// The kernel refuses a set smaller than its own; 8192 is the most that Linux supports.
constexpr int kMostCpus = 8192;

std::size_t set_bytes() {
  return CPU_ALLOC_SIZE(kMostCpus);
}

}  // namespace

CpuSet::CpuSet() : set_(CPU_ALLOC(kMostCpus)) {
  if (set_ != nullptr) CPU_ZERO_S(set_bytes(), set_);
}

CpuSet::CpuSet(const std::vector<int>& cpus) : CpuSet() {
  for (const int cpu : cpus) add(cpu);
}

void CpuSet::add(int cpu) {
  if (set_ != nullptr && cpu >= 0 && cpu < kMostCpus) CPU_SET_S(cpu, set_bytes(), set_);
}

bool CpuSet::read() {
  return set_ != nullptr && ::sched_getaffinity(0, set_bytes(), set_) == 0;
}

bool CpuSet::apply() const {
  if (set_ == nullptr) {
    errno = ENOMEM;
    return false;
  }
  return ::sched_setaffinity(0, set_bytes(), set_) == 0;
}

std::vector<int> CpuSet::cpus() const {
  std::vector<int> result;
  for (int cpu = 0; set_ != nullptr && cpu < kMostCpus; ++cpu) {
    if (CPU_ISSET_S(cpu, set_bytes(), set_)) result.push_back(cpu);
  }
  return result;
}

std::vector<int> allowed_cpus() {
  CpuSet set;
  return set.read() ? set.cpus() : std::vector<int>();
}

bool pin_to_cpu(int cpu) {
  return CpuSet({cpu}).apply();
}

PinnedToCpu::PinnedToCpu(int cpu) : before_(allowed_cpus()), pinned_(pin_to_cpu(cpu)) {}

PinnedToCpu::~PinnedToCpu() {
  if (!pinned_ || before_.empty()) return;
  CpuSet(before_).apply();
}

}  // namespace lockstep::inline internal
