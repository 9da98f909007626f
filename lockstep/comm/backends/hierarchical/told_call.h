#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/internal/concat.h"
#include "lockstep/comm/backends/hierarchical/machines.h"
#include "lockstep/comm/backends/shm/call.h"
#include "lockstep/comm/backends/shm/layout.h"

/// The call in front of what one machine sends another: machines compare by it what the ranks of
/// one compare in shared memory.
namespace lockstep::hierarchical {

/// Bytes that it takes; what follows stays aligned.
inline constexpr std::int64_t kToldCallBytes = shm::kLineBytes;
static_assert(sizeof(shm::Call) <= shm::kLineBytes);

inline void tell_call(std::byte* place, const shm::Call& call) {
  std::memcpy(place, &call, sizeof call);
}

// Errors: UsageError if `rank`, whose call is at `place`, has made another.
inline void check_told_call(const std::byte* place, const shm::Call& own, int rank) {
  shm::Call theirs;
  std::memcpy(&theirs, place, sizeof theirs);
  if (theirs == own) return;
  throw UsageError(concat("rank ", rank, " called ", shm::describe(theirs), ", this rank ",
                          shm::describe(own),
                          "; make the same calls in the same order on every rank"));
}

/// Compares what the other machines have told, in their order, each in front of as many bytes as
/// `bytes` says of that machine.
/// Errors: UsageError with a rank whose call differs, and both calls.
inline void check_told_calls(const std::byte* received, const std::vector<std::int64_t>& bytes,
                             const shm::Call& own, const Machines& machines) {
  for (int machine = 0; machine < machines.count; ++machine) {
    if (machine == machines.machine) continue;
    const auto index = static_cast<std::size_t>(machine);
    check_told_call(received, own, machines.partners[index]);
    received += bytes[index];
  }
}

}  // namespace lockstep::hierarchical
