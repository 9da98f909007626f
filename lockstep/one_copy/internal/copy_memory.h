#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/os/memory/memory_file.h"
#include "lockstep/os/memory/private_mapping.h"

namespace lockstep::inline internal {

/// A memory file that all ranks of a group map twice: shared, through which a rank updates its
/// share, and the first part of it copied on write, which the program sees.
/// Threads: any.
/// Lifetime: tensors over it keep it alive.
class CopyMemory {
 public:
  CopyMemory(UniqueFd file, std::uint64_t bytes, std::uint64_t seen_bytes)
      : file_(std::move(file)), shared_(file_.get(), bytes), own_(file_.get(), seen_bytes) {}

  const SharedMapping& shared() const { return shared_; }
  const PrivateMapping& own() const { return own_; }

 private:
  UniqueFd file_;
  SharedMapping shared_;
  PrivateMapping own_;
};

/// Makes the file on rank 0 and passes it to the other ranks, which are on the same machine.
/// Collective. `name`: for errors and /proc. `seen_bytes`: of what the program sees.
/// Errors: SystemError where a rank cannot map it; as Work::wait where a rank does not come.
std::shared_ptr<CopyMemory> make_copy_memory(const ProcessGroup& group, const std::string& name,
                                             std::uint64_t bytes, std::uint64_t seen_bytes);

}  // namespace lockstep::inline internal
