#pragma once

#include <cstdlib>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/internal/env.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::testing {

/// While it lives, the ranks of a group are as if on several machines, which a letter a rank names:
/// "001" keeps the last rank apart. Collective.
class OnMachines {
 public:
  OnMachines(const ProcessGroup& all, const std::string& machines,
             const std::string& backend = "hierarchical") {
    const char* const before = std::getenv(env::kMemoryDomain.name);
    if (before != nullptr) before_ = before;
    const std::string own = "apart " + machines.substr(static_cast<std::size_t>(all.rank()), 1);
    ::setenv(env::kMemoryDomain.name, own.c_str(), 1);
    std::vector<int> ranks(static_cast<std::size_t>(all.world_size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    group_ = all.new_group(ranks, {.backend = backend});
  }
  ~OnMachines() {
    if (before_) {
      ::setenv(env::kMemoryDomain.name, before_->c_str(), 1);
    } else {
      ::unsetenv(env::kMemoryDomain.name);
    }
  }
  OnMachines(const OnMachines&) = delete;
  OnMachines& operator=(const OnMachines&) = delete;

  /// All ranks, over the backend.
  const ProcessGroup& group() const { return group_; }

 private:
  std::optional<std::string> before_;
  ProcessGroup group_;
};

}  // namespace lockstep::testing
