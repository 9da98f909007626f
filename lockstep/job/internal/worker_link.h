#pragma once

#include <optional>
#include <string>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/base/internal/env.h"
#include "lockstep/os/files/unique_fd.h"

namespace lockstep::inline internal {

/// Set for workers besides the link, once others have ended during training.
inline constexpr env::Variable kStepsMade{
    "LOCKSTEP_STEPS_MADE", "int",
    "lower bound of the steps completed when a worker ended; set by lockstep run"};

/// A socket between a launcher and a worker, which inherits its end. A worker that sends nothing on
/// it is treated like any program. Messages: worker_message.h.
struct WorkerLink {
  UniqueFd launcher;
  UniqueFd worker;
};

/// Creates both ends, closed on exec.
/// Errors: SystemError.
WorkerLink make_worker_link();

/// The inherited end; -1 if no launcher started this process. The caller must not close it.
int inherited_worker_link();

/// Whether the descriptor can be a worker's end.
bool is_worker_link(int fd);

/// Takes over an inherited descriptor; it is closed on exec from now on.
UniqueFd take_inherited(int fd);

/// Sends bytes and a duplicate of `file`, unless it is -1, without waiting. Returns false if the
/// other side has ended or does not read, or for more than 64 KB.
bool send_frame(int link, std::string bytes, int file) noexcept;

/// Bytes and possibly a file, as send_frame() sent them.
struct Frame {
  std::string bytes;
  UniqueFd file;
};

/// Empty if none arrives before the deadline.
/// Errors: PeerLost if the other side has ended; SystemError.
std::optional<Frame> receive_frame(int link, const Deadline& deadline);

}  // namespace lockstep::inline internal
