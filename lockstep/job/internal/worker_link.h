#pragma once

#include <optional>
#include <string>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Given to workers beside the link, once others have ended in the middle of a training.
inline constexpr env::Variable kStepsMade{
    "LOCKSTEP_STEPS_MADE", "int",
    "how many steps the training had made at least when a worker ended; set by lockstep run"};

/// A socket between a launcher and a worker that it started, which inherits its end. A worker that
/// never sends on it is treated as any program. What is sent: worker_message.h.
struct WorkerLink {
  UniqueFd launcher;
  UniqueFd worker;
};

/// Both ends, closed in programs that this one executes. Errors: SystemError.
WorkerLink make_worker_link();

/// The end that this process inherited, -1 where no launcher started it. It stays the launcher's.
int inherited_worker_link();

/// Whether the descriptor may be a worker's end, and not something else under its number.
bool is_worker_link(int fd);

/// A descriptor by the number that this process inherited: closed from now on in programs that this
/// one executes.
UniqueFd take_inherited(int fd);

/// Never waits; a duplicate of `file`, unless it is -1, is sent along. False when the other side
/// has ended or does not read, or with more than 64 KB.
bool send_frame(int link, std::string bytes, int file) noexcept;

struct Frame {
  std::string bytes;
  UniqueFd file;
};

/// Nothing if none has come by the deadline. Errors: PeerLost when the other side has ended;
/// SystemError.
std::optional<Frame> receive_frame(int link, const Deadline& deadline);

}  // namespace lockstep::inline internal
