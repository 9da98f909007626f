#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Given to workers beside the link, once others have ended in the middle of a training.
inline constexpr env::Variable kStepsMade{
    "LOCKSTEP_STEPS_MADE", "int",
    "how many steps the training had made at least when a worker ended; set by lockstep run"};

/// What a launcher and a worker that it started say to each other, over a socket that the worker
/// inherits. Workers that say nothing are treated as any program.
struct LinkMessage {
  /// Programs are linked with the library, and their launcher is installed apart from it: a number
  /// is never used again for another kind.
  enum class Kind : std::uint8_t {
    // Of a worker.
    /// It outlives its generation: when another worker fails it is not to be ended. `lines`: the
    /// milliseconds within which it hears the launcher, unless it hangs.
    kKeepsState = 1,
    /// Its generation cannot go on; it waits for the next. `lines`: why; kLate where another rank
    /// did not do its part in time, kFollows where another has failed or left; the step that it was
    /// in.
    kLeftGroup = 2,
    kDone = 3,       ///< its training is over, and it outlives no generation any more
    kMemory = 4,     ///< `fd` is a memory file for the launcher to keep, in place of the last
    kTookPlace = 5,  ///< it has heard that `generation` begins
    kCalls =
        6,  ///< `fd` is a memory file with its last collectives (diagnose/capture/recent_calls.h)
    /// A rank did not do its part in a collective in time. `lines`: the operation, the group, the
    /// number in it, how many milliseconds this one has waited.
    kWaitedInVain = 7,
    kGivesUp = 10,  ///< its training cannot go on, whatever is started again; it ends with an error
    // Of the launcher.
    kPlace = 8,  ///< `generation` begins. `lines`: NAME=value, what is new in the environment
    kLeave = 9,  ///< `generation` cannot go on
  };

  static constexpr const char* kLate = "late";
  static constexpr const char* kFollows = "follows";

  Kind kind = Kind::kKeepsState;
  std::uint64_t generation = 0;
  /// None is longer than a message, of 64 KB, or holds a zero byte.
  std::vector<std::string> lines{};
  /// Of kPlace for rank 0, as it arrives: the bound socket of the generation's store.
  UniqueFd fd{};
};

struct WorkerLink {
  UniqueFd launcher;
  UniqueFd worker;
};

/// Both ends, closed in programs that this one executes. Errors: SystemError.
WorkerLink make_worker_link();

/// Whether the descriptor may be a worker's end, and not something else under its number.
bool is_worker_link(int fd);

/// A descriptor by the number that this process inherited: closed from now on in programs that this
/// one executes.
UniqueFd take_inherited(int fd);

/// Never waits; `fd`, if any, goes with it as a duplicate. False when the other side is gone, or
/// does not read what it is told.
bool send_message(int link, const LinkMessage& message, int fd = -1) noexcept;

/// The next message, if one has come by the deadline; what is none is passed over.
/// Errors: PeerLost when the other side is gone; SystemError.
std::optional<LinkMessage> receive_message(int link, const Deadline& deadline);

}  // namespace lockstep::inline internal
