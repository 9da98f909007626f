#pragma once

#include <map>

#include "lockstep/comm/process_group.h"
#include "tests/fuzz/differential/plan.h"

namespace lockstep::differential {

/// Groups of all ranks, made when they are first needed, and again after some plans. Collective.
class Groups {
 public:
  const ProcessGroup& get(Backend backend);
  /// The default group, over which no plan runs.
  const ProcessGroup& witness() const { return witness_; }

 private:
  struct Entry {
    ProcessGroup group;
    int plans = 0;
  };

  ProcessGroup make(Backend backend) const;

  ProcessGroup witness_ = default_group();
  std::map<Backend, Entry> entries_;

  static ProcessGroup default_group();
};

}  // namespace lockstep::differential
