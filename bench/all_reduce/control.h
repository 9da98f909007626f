#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::bench {

/// Keeps the ranks in step between measurements, over a backend that is not measured.
/// Threads, errors: as ProcessGroup.
class Control {
 public:
  explicit Control(ProcessGroup group) : group_(std::move(group)) {}

  int rank() const { return group_.rank(); }
  int ranks() const { return group_.world_size(); }
  const ProcessGroup& group() const { return group_; }

  void barrier() const { group_.barrier(); }

  /// The largest of all ranks' values, place by place.
  std::vector<double> max(std::vector<double> values) const;
  double max(double value) const { return max(std::vector<double>{value})[0]; }

 private:
  ProcessGroup group_;
};

}  // namespace lockstep::bench
