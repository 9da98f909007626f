#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/base/internal/deadline.h"
#include "lockstep/os/files/unique_fd.h"

// The messages between a launcher and a worker that it started (worker_link.h). Programs are linked
// with the library, and their launcher is installed apart from it: the two may be of different
// versions, so each side ignores messages that it does not know, and lines after those it knows.

namespace lockstep::inline internal {

/// The worker keeps its state: when another worker fails, the launcher must not stop it. From a
/// standby worker: it is ready.
struct KeepsState {
  /// Unless it hangs, the worker reads the launcher's messages within that time.
  std::chrono::milliseconds reads_within{};
  bool operator==(const KeepsState&) const = default;
};

/// The generation cannot continue; the worker waits for the next.
struct LeftGroup {
  enum class Cause {
    kError,       ///< of its own
    kLateRank,    ///< another rank did not take part in a collective in time
    kOtherWorker  ///< another worker failed or left
  };
  std::uint64_t generation = 0;
  std::string text{};
  Cause cause = Cause::kError;
  /// The step that it did not complete.
  std::optional<std::int64_t> step{};
  bool operator==(const LeftGroup&) const = default;
};

/// The worker keeps no state any more: it does not outlive a generation.
struct TrainingDone {
  bool is_complete = true;  ///< else the training continues, without recovery
  bool operator==(const TrainingDone&) const = default;
};

/// `file` of the message is a memory file that the launcher keeps in place of the last one.
struct StateFile {
  bool operator==(const StateFile&) const = default;
};

/// The worker has read its place in this generation.
struct TookRank {
  std::uint64_t generation = 0;
  bool operator==(const TookRank&) const = default;
};

/// `file` of the message is a memory file with the worker's last collectives
/// (diagnose/capture/recent_calls.h).
struct CallsFile {
  bool operator==(const CallsFile&) const = default;
};

/// `file` of the message is the end of a pipe into which the worker writes the stacks of its Python
/// threads, and a zero byte, when it gets the signal.
struct PythonStacksPipe {
  int signal = 0;
  bool operator==(const PythonStacksPipe&) const = default;
};

/// A rank did not take part in a collective in time.
struct DeadlineExpired {
  std::string operation{};
  std::string group{};
  /// The number of the collective in its group.
  std::optional<std::uint64_t> sequence{};
  std::chrono::milliseconds waited{};
  bool operator==(const DeadlineExpired&) const = default;
};

/// The training cannot continue whatever the launcher starts again; the worker ends with an error.
struct CannotRecover {
  bool operator==(const CannotRecover&) const = default;
};

/// The worker's place in a generation that begins. `file` of the message to rank 0: the bound
/// socket of the generation's store.
struct Place {
  std::uint64_t generation = 0;
  /// NAME=value, what changes in the worker's environment.
  std::vector<std::string> environment{};
  bool operator==(const Place&) const = default;
};

/// `file` of the message is the memory file that the launcher keeps. Before the first place of a
/// standby worker, which may have been started with another, or with none.
struct KeptStateFile {
  bool operator==(const KeptStateFile&) const = default;
};

/// This generation cannot continue. If the worker has no place in it: the generation begins without
/// the worker, because the job has fewer ranks.
struct LeaveGroup {
  std::uint64_t generation = 0;
  bool operator==(const LeaveGroup&) const = default;
};

using WorkerMessage = std::variant<KeepsState, LeftGroup, TrainingDone, StateFile, TookRank,
                                   CallsFile, PythonStacksPipe, DeadlineExpired, CannotRecover>;
using LauncherMessage = std::variant<Place, LeaveGroup, KeptStateFile>;

template <class Message>
struct Received {
  Message message;
  UniqueFd file{};
};

/// Never waits; the other side gets a duplicate of `file` if it is not -1.
/// Returns false if the other side has ended or does not read, or if the message has more than
/// 64 KB. Texts must not contain a zero byte.
bool send_message(int link, const WorkerMessage& message, int file = -1) noexcept;
bool send_message(int link, const LauncherMessage& message, int file = -1) noexcept;

/// The next message, or nothing if none has come by the deadline. What is no message of the other
/// side is ignored. Errors: PeerLost when the other side has ended; SystemError.
std::optional<Received<WorkerMessage>> receive_from_worker(int link, const Deadline& deadline);
std::optional<Received<LauncherMessage>> receive_from_launcher(int link, const Deadline& deadline);

}  // namespace lockstep::inline internal
